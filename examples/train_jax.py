"""Plans a PyTorch model and trains it in JAX, with optax.

    python examples/train_jax.py

The model is planned at half of its activation memory. `remat_compile.jax_step` gives
outputs and gradients as a function of JAX; optax does the rest.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import torch
from torch import Tensor, nn

import remat_compile


class Net(nn.Module):
    """Linear layers with GELU, and the loss inside."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return nn.functional.mse_loss(x, y)


def train(plan: remat_compile.Plan, x: Any, y: Any, steps: int = 20) -> list[float]:
    step = remat_compile.jax_step(plan)
    optimizer = optax.adam(1e-2)
    params: Any = step.params
    state = optimizer.init(params)

    def update(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = step(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    run = jax.jit(update, compiler_options=step.compiler_options)
    losses = []
    for _ in range(steps):
        params, state, loss = run(params, state, x, y)
        losses.append(float(loss))
    return losses


def main() -> None:
    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(64, 32), torch.randn(64, 32)
    keep = remat_compile.plan(model, (x, y), planner="store-all")
    half = remat_compile.plan(model, (x, y), activation_budget="50%", time_limit_s=2)
    print(half.summary())
    ours = train(half, x.numpy(), y.numpy())
    theirs = train(keep, x.numpy(), y.numpy())
    print(f"loss {ours[0]:.4f} -> {ours[-1]:.4f}")
    print(f"same as without a plan: {np.allclose(ours, theirs, rtol=1e-4)}")


if __name__ == "__main__":
    main()
