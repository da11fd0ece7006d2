"""Synthetic training steps, built directly as Programs. Bytes and nanoseconds."""

from __future__ import annotations

import random
from collections.abc import Sequence

from helpers.planners.graph_builder import Builder
from helpers.planners.transformer_graph import transformer
from remat_compile.ir.graph import ANodeKind, Call, Ref, View
from remat_compile.ir.program import BufferBinding, Program

__all__ = [
    "Builder",
    "chain",
    "encoder_decoder",
    "random_dag",
    "residual",
    "stochastic",
    "towers",
    "transformer",
    "unet",
]


def chain(length: int = 8, size: int = 100, *, seed: int | None = None) -> Program:
    """`length` layers; each backward reads its layer's input and output."""
    rng = random.Random(seed)
    b = Builder("chain")
    sizes = [size if seed is None else rng.randint(size // 4, size) for _ in range(length + 1)]
    times = [10 if seed is None else rng.randint(1, 30) for _ in range(length)]
    b.input("x0", sizes[0])
    layers = []
    for i in range(length):
        b.param(f"w{i}", 20, f"dw{i}")
        writes: list[tuple[str, ANodeKind, int]] = [
            (f"x{i + 1}", "output" if i == length - 1 else "act", sizes[i + 1])
        ]
        layers.append(b.op([f"x{i}", f"w{i}"], writes, time=times[i], workspace=5))
    b.loss([f"x{length}"], [(f"d{length}", sizes[length])])
    for i in reversed(range(length)):
        grads: list[tuple[str, ANodeKind, int]] = [(f"dw{i}", "param_grad", 20)]
        if i:
            grads.append((f"d{i}", "grad", sizes[i]))
        reads = [f"x{i}", f"x{i + 1}", f"w{i}", f"d{i + 1}"]
        b.op(reads, grads, phase="bwd", time=2 * times[i], of=[layers[i]])
    return b.program()


def residual(blocks: int = 4, size: int = 64) -> Program:
    """y = x + f(g(x)), with sums of gradients as accumulates and views that are read."""
    b = Builder("residual")
    b.input("x0", size)
    for i in range(blocks):
        b.param(f"w{i}", 16, f"dw{i}")
        b.op([f"x{i}", f"w{i}"], [(f"h{i}", "act", 4 * size)], time=40, workspace=8)
        b.views.append(View(f"h{i}v", f"h{i}", Call("toy.view.default", (Ref(f"h{i}"),))))
        b.op([f"h{i}v"], [(f"g{i}", "act", 4 * size), (f"m{i}", "phantom", size)], time=4)
        kind: ANodeKind = "output" if i == blocks - 1 else "act"
        b.op([f"x{i}", f"g{i}"], [(f"x{i + 1}", kind, size)], time=20)
    b.loss([f"x{blocks}"], [(f"d{blocks}", size)])
    for i in reversed(range(blocks)):
        b.op([f"d{i + 1}", f"g{i}"], [(f"dg{i}", "grad", 4 * size)], phase="bwd", time=20)
        b.op([f"dg{i}", f"h{i}v", f"m{i}"], [(f"dh{i}", "grad", 4 * size)], phase="bwd", time=4)
        b.op([f"dh{i}", f"x{i}"], [(f"dw{i}", "param_grad", 16)], phase="bwd", time=40)
        if i:
            b.op([f"dh{i}", f"w{i}"], [(f"c{i}", "grad", size)], phase="bwd", time=40)
            b.accumulate(f"d{i + 1}", f"c{i}", f"d{i}", "grad", size)
    return b.program()


def unet(depth: int = 4, size: int = 512) -> Program:
    """Skips from each level of the way down to the same level of the way up."""
    b = Builder("unet")
    b.input("e0", size)
    level = [max(8, size >> i) for i in range(depth + 1)]
    b.param("w", 32, "dw")
    for i in range(depth):
        b.op([f"e{i}", "w"], [(f"s{i}", "act", level[i])], time=30)
        b.op([f"s{i}"], [(f"e{i + 1}", "act", level[i + 1])], time=5)
    up = f"e{depth}"
    for i in reversed(range(depth)):
        kind: ANodeKind = "output" if i == 0 else "act"
        b.op([up, f"s{i}"], [(f"u{i}", kind, level[i])], time=30, workspace=level[i] // 2)
        up = f"u{i}"
    b.loss([up], [("du0", level[0])])
    for i in range(depth):
        below = f"u{i + 1}" if i + 1 < depth else f"e{depth}"
        b.op(
            [f"du{i}", below, f"s{i}"],
            [(f"ds{i}", "grad", level[i]), (f"du{i + 1}", "grad", level[i + 1])],
            phase="bwd",
            time=60,
        )
    down = f"du{depth}"
    for i in reversed(range(depth)):
        b.op([down, f"s{i}"], [(f"dp{i}", "grad", level[i])], phase="bwd", time=5)
        b.accumulate(f"ds{i}", f"dp{i}", f"dt{i}", "grad", level[i])
        writes: list[tuple[str, ANodeKind, int]] = [
            (f"dwp{i}" if i else "dwq", "grad", 32),
        ]
        if i:
            writes.append((f"de{i}", "grad", level[i]))
        b.op([f"dt{i}", f"e{i}", "w"], writes, phase="bwd", time=60)
        down = f"de{i}"
    total = f"dwp{depth - 1}" if depth > 1 else "dwq"
    for i in reversed(range(depth - 1)):
        part = f"dwp{i}" if i else "dwq"
        last = i == 0
        b.accumulate(total, part, "dw" if last else f"dwt{i}", "param_grad" if last else "grad", 32)
        total = f"dwt{i}"
    if depth == 1:
        b.op(["dwq"], [("dw", "param_grad", 32)], phase="bwd")
    return b.program()


def stochastic(blocks: int = 3, size: int = 128) -> Program:
    """Dropout with tokens, BatchNorm with replay forms and pending buffer contents, and an
    operator that reads an updated buffer and so may not run after the loss."""
    b = Builder("stochastic")
    b.input("x0", size)
    pending = []
    for i in range(blocks):
        b.param(f"w{i}", 16, f"dw{i}")
        b.storage(f"rm{i}", "buffer", 8)
        b.buffers.append(BufferBinding((f"rm{i}",), f"rm{i}", f"nrm{i}"))
        b.op(
            [f"x{i}", f"w{i}", f"rm{i}"],
            [(f"n{i}", "act", 2 * size), (f"mean{i}", "phantom", 8), (f"nrm{i}", "pending", 8)],
            time=20,
            replay=[f"n{i}", f"mean{i}"],
        )
        b.op(
            [f"n{i}"],
            [(f"a{i}", "act", 2 * size), (f"mask{i}", "phantom", size // 2)],
            time=5,
            token=f"r{i}",
        )
        kind: ANodeKind = "output" if i == blocks - 1 else "act"
        reads = [f"a{i}", f"rm{i}"] if i == 0 else [f"a{i}", f"x{i}"]
        b.op(reads, [(f"x{i + 1}", kind, size)], time=10)
        pending.append(f"nrm{i}")
    b.loss([f"x{blocks}", *pending], [(f"d{blocks}", size)])
    for i in reversed(range(blocks)):
        b.op([f"d{i + 1}", f"a{i}"], [(f"da{i}", "grad", 2 * size)], phase="bwd", time=10)
        b.op([f"da{i}", f"mask{i}"], [(f"dn{i}", "grad", 2 * size)], phase="bwd", time=5)
        writes: list[tuple[str, ANodeKind, int]] = [(f"dw{i}", "param_grad", 16)]
        if i:
            writes.append((f"d{i}", "grad", size))
        reads = [f"dn{i}", f"x{i}", f"w{i}", f"mean{i}", f"n{i}"]
        b.op(reads, writes, phase="bwd", time=40)
    return b.program(granularity=4)


def towers(lengths: Sequence[int] = (2, 4, 5), size: int = 100) -> Program:
    """Homogeneous chains that meet at the loss: models with several inputs and one score."""
    b = Builder("towers")
    layers: list[list[str]] = []
    for k, length in enumerate(lengths):
        b.input(f"x{k}_0", size)
        made = []
        for i in range(length):
            b.param(f"w{k}_{i}", 20, f"dw{k}_{i}")
            writes: list[tuple[str, ANodeKind, int]] = [(f"x{k}_{i + 1}", "act", size)]
            made.append(b.op([f"x{k}_{i}", f"w{k}_{i}"], writes, time=10))
        layers.append(made)
    tops = [f"x{k}_{length}" for k, length in enumerate(lengths)]
    b.op(tops, [("y", "output", 10)], time=1)
    b.loss(["y"], [("dy", 10)])
    b.op(["dy", *tops], [(f"d{top[1:]}", "grad", size) for top in tops], phase="bwd", time=1)
    for k, length in reversed(list(enumerate(lengths))):
        for i in reversed(range(length)):
            grads: list[tuple[str, ANodeKind, int]] = [(f"dw{k}_{i}", "param_grad", 20)]
            if i:
                grads.append((f"d{k}_{i}", "grad", size))
            reads = [f"x{k}_{i}", f"w{k}_{i}", f"d{k}_{i + 1}"]
            b.op(reads, grads, phase="bwd", time=20, of=[layers[k][i]])
    return b.program()


def encoder_decoder(layers: int = 3, size: int = 96) -> Program:
    """Every layer of the decoder reads the encoder's result; the encoder gets the sum."""
    b = Builder("encoder_decoder")
    b.input("s0", 2 * size)
    b.input("t0", size)
    for i in range(layers):
        b.param(f"we{i}", 16, f"dwe{i}")
        b.op([f"s{i}", f"we{i}"], [(f"s{i + 1}", "act", 2 * size)], time=40, workspace=10)
    memory = f"s{layers}"
    for i in range(layers):
        b.param(f"wd{i}", 16, f"dwd{i}")
        b.op([f"t{i}", memory], [(f"c{i}", "act", size), (f"p{i}", "phantom", size // 4)], time=20)
        kind: ANodeKind = "output" if i == layers - 1 else "act"
        b.op([f"c{i}", f"t{i}", f"wd{i}"], [(f"t{i + 1}", kind, size)], time=30)
    b.loss([f"t{layers}"], [(f"dt{layers}", size)])
    total = ""
    for i in reversed(range(layers)):
        reads = [f"dt{i + 1}", f"c{i}", f"t{i}", f"wd{i}"]
        writes: list[tuple[str, ANodeKind, int]] = [
            (f"dc{i}", "grad", size),
            (f"dwd{i}", "param_grad", 16),
        ]
        b.op(reads, writes, phase="bwd", time=60)
        parts: list[tuple[str, ANodeKind, int]] = [(f"dm{i}", "grad", 2 * size)]
        if i:
            parts.append((f"dt{i}", "grad", size))
        b.op([f"dc{i}", f"t{i}", memory, f"p{i}"], parts, phase="bwd", time=40)
        if total:
            b.accumulate(total, f"dm{i}", f"sum{i}", "grad", 2 * size)
        total = f"sum{i}" if total else f"dm{i}"
    for i in reversed(range(layers)):
        grads: list[tuple[str, ANodeKind, int]] = [(f"dwe{i}", "param_grad", 16)]
        if i:
            grads.append((f"ds{i}", "grad", 2 * size))
        b.op([total, f"s{i}", f"s{i + 1}", f"we{i}"], grads, phase="bwd", time=80)
        total = f"ds{i}"
    return b.program()


def random_dag(seed: int, nodes: int = 12) -> Program:
    """A random forward DAG and a backward that reads inputs, outputs or neither."""
    rng = random.Random(seed)
    b = Builder(f"random{seed}")
    b.input("x0", rng.randint(1, 50))
    values = ["x0"]
    reads_of: list[list[str]] = []
    size_of = {"x0": 1}
    for i in range(nodes):
        b.param(f"w{i}", rng.randint(1, 9), f"dw{i}")
        near = values[-1] if rng.random() < 0.7 else rng.choice(values)
        reads = list(
            dict.fromkeys([near, *rng.sample(values, min(len(values), rng.randint(0, 2)))])
        )
        size_of[f"v{i}"] = rng.randint(1, 100)
        kind: ANodeKind = "output" if i == nodes - 1 else "act"
        writes: list[tuple[str, ANodeKind, int]] = [(f"v{i}", kind, size_of[f"v{i}"])]
        if rng.random() < 0.3:
            writes.append((f"p{i}", "phantom", rng.randint(1, 40)))
        token = f"r{i}" if rng.random() < 0.2 else None
        b.op(
            [*reads, f"w{i}"],
            writes,
            time=rng.randint(0, 30),
            workspace=rng.randint(0, 20),
            token=token,
        )
        values.append(f"v{i}")
        reads_of.append(reads)
    b.loss([values[-1]], [(f"g{nodes - 1}_0", size_of[values[-1]])])
    _random_backward(b, rng, nodes, reads_of, size_of)
    return b.program(granularity=rng.choice([1, 8]))


def _random_backward(
    b: Builder,
    rng: random.Random,
    nodes: int,
    reads_of: list[list[str]],
    size_of: dict[str, int],
) -> None:
    grad = {f"v{nodes - 1}": f"g{nodes - 1}_0"}
    phantoms = {a.name for a in b.anodes if a.kind == "phantom"}
    for i in reversed(range(nodes)):
        if f"v{i}" not in grad:
            b.op([f"v{i}"], [(f"dw{i}", "param_grad", 4)], phase="bwd", time=1)
            continue
        reads = [grad[f"v{i}"], f"w{i}"]
        reads += [r for r in reads_of[i] if rng.random() < 0.8]
        reads += [f"v{i}"] if rng.random() < 0.5 else []
        reads += [f"p{i}"] if f"p{i}" in phantoms else []
        wanted = [r for r in reads_of[i] if r != "x0"]
        parts: list[tuple[str, ANodeKind, int]] = [(f"dw{i}", "param_grad", 4)]
        parts += [(f"c{i}_{r}", "grad", size_of[r]) for r in wanted]
        b.op(reads, parts, phase="bwd", time=rng.randint(0, 60), workspace=rng.randint(0, 20))
        for r in wanted:
            if r not in grad:
                grad[r] = f"c{i}_{r}"
                continue
            total = f"s{i}_{r}"
            if rng.random() < 0.7 and not grad[r].startswith("g"):
                b.accumulate(grad[r], f"c{i}_{r}", total, "grad", size_of[r])
            else:
                b.op([grad[r], f"c{i}_{r}"], [(total, "grad", size_of[r])], phase="bwd")
            grad[r] = total
