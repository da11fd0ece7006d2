"""Run with two CPU devices: a step whose batch lies on both equals that on one."""

from __future__ import annotations

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn

import remat_compile


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(8, 6)
    plan = remat_compile.plan(
        model, (x,), planner="periodic{segments=2}", costs="roofline", device="cpu"
    )
    step = remat_compile.jax_step(plan, loss=lambda out: (out**2).mean())
    run = jax.jit(step, compiler_options=step.compiler_options)
    out, grads = run(step.params, x.numpy())
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    split = jax.device_put(x.numpy(), NamedSharding(mesh, PartitionSpec("batch")))
    both, theirs = run(jax.device_put(step.params, NamedSharding(mesh, PartitionSpec())), split)
    assert len(both.sharding.device_set) == len(jax.devices())
    equal = np.allclose(out, both, rtol=1e-6, atol=1e-7) and all(
        np.allclose(grads[name], theirs[name], rtol=1e-5, atol=1e-7) for name in grads
    )
    print(f"{len(jax.devices())} devices, equal: {equal}")


if __name__ == "__main__":
    main()
