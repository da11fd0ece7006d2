"""How long a proof takes: obligations 1 and 2 on schedules of 1e3, 1e4 and 1e5 steps.

    python benchmarks/verifier.py [--steps 1000 10000 100000] [--repeat 5]

The schedule is a chain of layers in segments: each backward segment runs its forward
again (phantoms dropped the first time), with every tensor freed as soon as it may be.
Prints medians in seconds; `refute` has one byte less than the plan takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from remat_compile.ir.expr import Const
from remat_compile.ir.graph import ANode, ANodeKind, Call, CNode, Graph, Phase, Ref
from remat_compile.ir.program import Binding, Budget, ParamBinding, Program, Result
from remat_compile.ir.schedule import Compute, Free, Schedule, Step
from remat_compile.verifier import ProvenPlan, Refuted, Undecided, verify
from remat_compile.verifier.events import Event, unfold
from remat_compile.verifier.memory import Limits, prove_memory
from remat_compile.verifier.sizes import Sizes, measure
from remat_compile.verifier.smt import Deadline, NoModel
from remat_compile.verifier.statements import Statements, read_statements
from remat_compile.verifier.validity import prove_validity

SEGMENT = 25
STEPS_PER_LAYER = 8
LIMIT_S = 600.0


def chain(layers: int) -> tuple[Program, Schedule]:
    """A chain of `layers` layers and its segmented schedule, about 8 steps per layer."""
    anodes: list[ANode] = []
    cnodes: list[CNode] = []

    def storage(name: str, kind: ANodeKind, size: int) -> str:
        anodes.append(ANode(name, kind, "u8", (Const(size),), Const(size)))
        return name

    def compute(name: str, phase: Phase, reads: list[str], writes: list[str]) -> None:
        call = Call("loss" if phase == "loss" else "toy.op.default", tuple(map(Ref, reads)))
        cnodes.append(CNode(name, phase, tuple(writes), call, workspace=Const(64), time_ns=1))

    previous = storage("x", "input", 4096)
    for i in range(layers):
        weight = storage(f"w{i}", "param", 1000 + i % 7)
        kind: ANodeKind = "output" if i == layers - 1 else "act"
        made = [storage(f"a{i}", kind, 4096 + i % 13), storage(f"p{i}", "phantom", 512)]
        compute(f"F{i}", "fwd", [previous, weight], made)
        previous = made[0]
    gradient = storage("t", "tangent", 4096)
    compute("L", "loss", [previous], [gradient])
    for i in reversed(range(layers)):
        below = "x" if i == 0 else f"a{i - 1}"
        made = [storage(f"d{i}", "grad", 4096), storage(f"dw{i}", "param_grad", 1000 + i % 7)]
        compute(f"B{i}", "bwd", [gradient, f"p{i}", f"w{i}", below], made)
        gradient = made[0]
    params = tuple(ParamBinding((f"w{i}",), f"w{i}", f"dw{i}") for i in range(layers))
    binding = Binding(params=params, results=(Result(f"a{layers - 1}", "t"),))
    program = Program(Graph("chain", tuple(anodes), (), tuple(cnodes)), binding)
    return program, Schedule("plan", "", tuple(_segmented(layers)))


def _segmented(layers: int) -> list[Step]:
    last = layers - 1
    steps: list[Step] = []
    for i in range(layers):
        steps.append(Compute(f"F{i}", nosave=True))
        if i and i % SEGMENT:
            steps.append(Free(f"a{i - 1}"))
    steps.append(Compute("L"))
    for start in reversed(range(0, layers, SEGMENT)):
        stop = min(start + SEGMENT, layers)
        steps += [Compute(f"F{i}") for i in range(start, stop)]
        for i in reversed(range(start, stop)):
            steps.append(Compute(f"B{i}"))
            steps += [Free("t" if i == last else f"d{i + 1}"), Free(f"p{i}")]
            if i != last:
                steps.append(Free(f"a{i}"))
    return [*steps, Free("d0")]


def _median_s(work: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _parts(program: Program, schedule: Schedule) -> tuple[Statements, list[Event], Sizes]:
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    events = unfold(statements, schedule)
    assert isinstance(events, list)
    sizes = measure(program, statements, {})
    assert isinstance(sizes, Sizes)
    return statements, events, sizes


def row(target: int, repeat: int) -> str:
    """One line of the table, for a schedule of about `target` steps."""
    program, schedule = chain(max(1, target // STEPS_PER_LAYER))
    verdict = verify(program, schedule, time_limit_s=LIMIT_S)
    assert isinstance(verdict, ProvenPlan), verdict
    short = (Budget(verdict.proven.device_bytes - 1),)

    def refute() -> None:
        answer = verify(program, schedule, short, time_limit_s=LIMIT_S)
        assert isinstance(answer, Refuted), answer

    def prove() -> None:
        answer = verify(program, schedule, time_limit_s=LIMIT_S)
        assert not isinstance(answer, Undecided | Refuted), answer

    def validity() -> None:
        answer = prove_validity(statements, events, Deadline(LIMIT_S))
        assert isinstance(answer, NoModel), answer

    def memory() -> None:
        prove_memory(statements, events, sizes, Limits(None, None), Deadline(LIMIT_S))

    read = _median_s(lambda: _parts(program, schedule), repeat)
    statements, events, sizes = _parts(program, schedule)
    cells = [read, *(_median_s(work, repeat) for work in (validity, memory, prove, refute))]
    return f"{len(schedule.steps):>8} " + " ".join(f"{cell:>9.3f}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    names = ("read", "validity", "memory", "verify", "refute")
    print(f"{'steps':>8} " + " ".join(f"{name:>9}" for name in names))
    for steps in options.steps:
        print(row(steps, options.repeat if steps < 100_000 else min(3, options.repeat)), flush=True)


if __name__ == "__main__":
    main()
