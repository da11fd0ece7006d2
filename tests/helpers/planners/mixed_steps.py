"""Random training steps with all that planning has to mind: results kept from the middle of the
forward, random tokens, buffers with replay forms, tied weights, globals, sums of gradients."""

from __future__ import annotations

import random

from helpers.planners.graph_builder import Builder
from remat_compile.ir.graph import ANodeKind
from remat_compile.ir.program import BufferBinding, Program


def mixed_chain(seed: int, layers: int = 8) -> Program:
    """Layer after layer, a skip now and then."""
    return _mixed(seed, layers, skips=0.15)


def mixed_dag(seed: int, nodes: int = 12) -> Program:
    """Any earlier value may be read."""
    return _mixed(seed, nodes, skips=0.7)


def _mixed(seed: int, nodes: int, skips: float) -> Program:
    rng = random.Random(seed)
    b = Builder(f"mixed{seed}")
    b.input("x", rng.randint(1, 50))
    b.param("tied", 8, "dtied")
    b.op(["x"], [("mask", "act", rng.randint(1, 20))], time=3)
    values = ["x"]
    outputs: list[str] = []
    pending: list[str] = []
    made: list[tuple[list[str], list[str], bool]] = []
    size = {"x": 1}
    for i in range(nodes):
        name = f"v{i}"
        size[name] = rng.randint(1, 100)
        reads = [values[-1]]
        if rng.random() < skips:
            reads.append(rng.choice(values))
        if rng.random() < 0.25:
            reads.append("mask")
        tied = rng.random() < 0.3
        weight = "tied" if tied else f"w{i}"
        if not tied:
            b.param(weight, 4, f"dw{i}")
        last = i == nodes - 1
        kept = last or rng.random() < 0.15
        kind: ANodeKind = "output" if kept else "act"
        if kept:
            outputs.append(name)
        writes: list[tuple[str, ANodeKind, int]] = [(name, kind, size[name])]
        saved = []
        if rng.random() < 0.3:
            saved.append(f"p{i}")
            writes.append((f"p{i}", "phantom", rng.randint(1, 40)))
        replay: list[str] | None = None
        reads = list(dict.fromkeys([*reads, weight]))
        if rng.random() < 0.2 and not kept:
            b.storage(f"rm{i}", "buffer", 8)
            b.buffers.append(BufferBinding((f"rm{i}",), f"rm{i}", f"nrm{i}"))
            replay = [w for w, _, _ in writes]
            reads.append(f"rm{i}")
            writes.append((f"nrm{i}", "pending", 8))
            pending.append(f"nrm{i}")
        token = f"r{i}" if rng.random() < 0.2 else None
        b.op(
            reads,
            writes,
            time=rng.randint(0, 30),
            workspace=rng.randint(0, 20),
            token=token,
            replay=replay,
        )
        made.append(([r for r in reads if r.startswith("v")], saved, tied))
        values.append(name)
    tangents = [(f"t_{name}", size[name]) for name in outputs]
    b.loss([*outputs, *pending], tangents)
    _backward(b, rng, made, dict(zip(outputs, (t for t, _ in tangents), strict=True)), size)
    return b.program(granularity=rng.choice([1, 8]))


def _backward(
    b: Builder,
    rng: random.Random,
    made: list[tuple[list[str], list[str], bool]],
    grad: dict[str, str],
    size: dict[str, int],
) -> None:
    ties = [i for i, (_, _, tied) in enumerate(made) if tied]
    total = ""
    for i in reversed(range(len(made))):
        inputs, saved, tied = made[i]
        name = f"v{i}"
        reads = [r for r in (*inputs, *saved) if r in saved or rng.random() < 0.8]
        reads += [name] if rng.random() < 0.5 else []
        reads += [grad[name]] if name in grad else []
        own: list[tuple[str, ANodeKind, int]] = []
        if not tied:
            own.append((f"dw{i}", "param_grad", 4))
        else:
            own.append(("dtied", "param_grad", 8) if ties == [i] else (f"dt{i}", "grad", 8))
        own += [(f"c{i}_{r}", "grad", size[r]) for r in dict.fromkeys(inputs)]
        b.op(reads or [name], own, phase="bwd", time=rng.randint(0, 60), workspace=5)
        for r in dict.fromkeys(inputs):
            if r not in grad:
                grad[r] = f"c{i}_{r}"
                continue
            b.accumulate(grad[r], f"c{i}_{r}", f"s{i}_{r}", "grad", size[r])
            grad[r] = f"s{i}_{r}"
        if tied and len(ties) > 1:
            if not total:
                total = f"dt{i}"
            elif i == ties[0]:
                b.op([total, f"dt{i}"], [("dtied", "param_grad", 8)], phase="bwd", time=1)
            else:
                b.accumulate(total, f"dt{i}", f"dts{i}", "grad", 8)
                total = f"dts{i}"
    if not ties:
        b.op(["x"], [("dtied", "param_grad", 8)], phase="bwd", time=1)


def _layered(
    b: Builder, x: str, name: str, size: int, made: list[tuple[list[str], str, int]]
) -> str:
    """Two operators of a layer; what the backward of each reads is what it read and made."""
    b.param(f"w_{name}", 4, f"dw_{name}")
    b.op([x, f"w_{name}"], [(f"h_{name}", "act", 4 * size)], time=40)
    made.append(([x], f"h_{name}", 4 * size))
    b.op([f"h_{name}"], [(f"y_{name}", "act", size)], time=10)
    made.append(([f"h_{name}"], f"y_{name}", size))
    return f"y_{name}"


def _finish(b: Builder, made: list[tuple[list[str], str, int]], out: str, size: int) -> Program:
    sizes = {name: n for _, name, n in made}
    b.op([out], [("out", "output", 10)], time=1)
    b.loss(["out"], [("t", 10)])
    b.op(["t", out], [(f"g_{out}", "grad", size)], phase="bwd", time=1)
    grad = {out: f"g_{out}"}
    for k, (inputs, name, _) in reversed(list(enumerate(made))):
        weight = name.replace("h_", "dw_", 1) if name.startswith("h_") else None
        writes: list[tuple[str, ANodeKind, int]] = []
        if weight:
            writes.append((weight, "param_grad", 4))
        known = [r for r in inputs if r in sizes]
        writes += [(f"c{k}_{r}", "grad", sizes[r]) for r in known]
        b.op([grad[name], *inputs, name], writes, phase="bwd", time=50)
        for r in known:
            if r in grad:
                b.accumulate(grad[r], f"c{k}_{r}", f"s{k}_{r}", "grad", sizes[r])
                grad[r] = f"s{k}_{r}"
            else:
                grad[r] = f"c{k}_{r}"
    return b.program()


def moe(layers: int = 4, experts: int = 3, size: int = 64) -> Program:
    """Every layer gates, runs its experts on the same input, and adds them up."""
    b = Builder("moe")
    b.input("x", size)
    made: list[tuple[list[str], str, int]] = []
    x = _layered(b, "x", "in", size, made)
    for i in range(layers):
        parts = [_layered(b, x, f"{i}_{e}", size, made) for e in range(experts)]
        b.op([x, *parts], [(f"m{i}", "act", size)], time=5)
        made.append(([x, *parts], f"m{i}", size))
        x = f"m{i}"
    return _finish(b, made, x, size)


def two_towers(layers: int = 6, size: int = 64) -> Program:
    """Captured turn by turn, so that neither tower is an interval of the order."""
    b = Builder("two towers")
    b.input("a", size)
    b.input("b", 2 * size)
    made: list[tuple[list[str], str, int]] = []
    left, right = "a", "b"
    for i in range(layers):
        left = _layered(b, left, f"a{i}", size, made)
        right = _layered(b, right, f"b{i}", 2 * size, made)
    b.op([left, right], [("both", "act", size)], time=5)
    made.append(([left, right], "both", size))
    return _finish(b, made, "both", size)
