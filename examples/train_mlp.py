"""Trains a small network under half of its activation memory, and checks the result.

    python examples/train_mlp.py

The plan, bound to its model, is a module that trains as the original does: same parameters,
same gradients, fewer bytes (`remat_compile.compile` plans and binds in one call). The loop
below is the usual one.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compile


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(64, 256), nn.GELU()]
    for _ in range(6):
        layers += [nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def train(model: nn.Module, x: Tensor, labels: Tensor, steps: int = 20) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    x, labels = torch.randn(512, 64), torch.randint(0, 10, (512,))
    eager = make_model()
    original = copy.deepcopy(eager)

    plan = remat_compile.plan(original, (x,), activation_budget="50%", time_limit_s=2)
    print(f"planned activation peak: {plan.activation_peak_bytes / 2**20:.2f} MiB")
    model = plan.bind()

    ours, theirs = train(model, x, labels), train(eager, x, labels)
    print(f"loss {ours[0]:.4f} -> {ours[-1]:.4f}; eager {theirs[0]:.4f} -> {theirs[-1]:.4f}")
    same = all(
        torch.equal(a, b) for a, b in zip(model.parameters(), eager.parameters(), strict=True)
    )
    print(f"parameters after training bit-equal to eager: {same}")
    if ours != theirs or not same:
        raise SystemExit("the compiled model trains differently from eager")


if __name__ == "__main__":
    main()
