"""How long a proof takes, obligation by obligation, on schedules of 1e3, 1e4 and 1e5 steps.

    python benchmarks/verifier.py [--steps 1000 10000 100000] [--repeat 5] [--gpt2]

The schedule is a chain of layers in segments: each backward segment runs its forward
again (phantoms dropped the first time), with every tensor freed as soon as it may be.
`2 ranges` has sizes in a symbol b in [1, 64], some of which fall, rounded to 512 bytes;
`4 races` has copies of the phantoms to the host and back. Reading the text is left out.
Prints medians of elapsed seconds, and of processor seconds in brackets.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from remat_compile.ir.expr import Add, Const, Expr, Max, Mul, Sym
from remat_compile.ir.graph import ANode, ANodeKind, Call, CNode, Graph, Phase, Ref
from remat_compile.ir.program import Binding, ParamBinding, Program, Result, Symbol, Target
from remat_compile.ir.schedule import (
    Compute,
    Free,
    HostFree,
    Offload,
    Prefetch,
    Schedule,
    Step,
    Wait,
)
from remat_compile.verifier import ProvenPlan, verify
from remat_compile.verifier.arithmetic.walk import StepBytes
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations.claims import compute_claims, prove_time
from remat_compile.verifier.obligations.memory import ByteLimits, prove_memory
from remat_compile.verifier.obligations.memory_ranges import Everywhere, prove_ranges
from remat_compile.verifier.obligations.races import prove_races
from remat_compile.verifier.obligations.validity import prove_validity
from remat_compile.verifier.obligations.values import prove_values
from remat_compile.verifier.read.events import Event, unfold
from remat_compile.verifier.read.sizes import Amounts, read_amounts
from remat_compile.verifier.read.statements import Statements, read_statements
from remat_compile.verifier.smt import NoModel

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


def ranging(program: Program) -> Program:
    """The same graph with sizes in b, rounded to 512 bytes; those of phantoms fall, so that
    the largest b decides nothing."""
    b = Sym("b")

    def size(a: ANode) -> Expr:
        if a.kind in ("param", "param_grad") or not isinstance(a.size, Const):
            return a.size
        if a.kind == "phantom":
            return Max((Const(0), Add((Const(5000), Mul((Const(-37), b))))))
        return Add((Mul((Const(37 + a.size.value % 13), b)), Const(4)))

    anodes = tuple(replace(a, size=size(a), shape=(size(a),)) for a in program.graph.anodes)
    graph = replace(program.graph, anodes=anodes)
    symbols = (Symbol("b", 1, 64, 8, 0, 0),)
    return replace(program, graph=graph, symbols=symbols, target=Target(granularity_bytes=512))


def copied(schedule: Schedule) -> Schedule:
    """The same steps, with each activation copied to the host and back around its free."""
    steps: list[Step] = []
    held: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, Free) and step.anode.startswith("p") and step.anode not in held:
            held.add(step.anode)
            copy = (Offload(step.anode), Wait(step.anode), step, Prefetch(step.anode))
            steps += [*copy, Wait(step.anode), HostFree(step.anode), step]
        else:
            steps.append(step)
    return replace(schedule, steps=tuple(steps))


@dataclass(frozen=True)
class Parts:
    """What the obligations are stated about."""

    statements: Statements
    events: list[Event]
    amounts: Amounts


def parts_of(program: Program, schedule: Schedule) -> Parts:
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    events = unfold(statements, schedule)
    assert isinstance(events, list)
    amounts = read_amounts(program, statements)
    assert isinstance(amounts, Amounts)
    return Parts(statements, events, amounts)


Work = Callable[[], object]


def obligations(program: Program, schedule: Schedule) -> dict[str, Work]:
    """A proof of each obligation alone, and of all."""
    parts = parts_of(program, schedule)
    other = ranging(program)
    wide = parts_of(other, schedule)
    moved = copied(schedule)
    copies = parts_of(program, moved)
    sizes, target = parts.amounts.at({}), program.target
    claims = compute_claims(parts.statements, parts.events, sizes, target)
    none = ByteLimits(None, None)

    def proven(answer: object, kind: type) -> object:
        assert isinstance(answer, kind), answer
        return answer

    def left() -> Inquiry:
        return Inquiry(LIMIT_S)

    return {
        "read": lambda: parts_of(program, schedule),
        "1 validity": lambda: proven(
            prove_validity(parts.statements, parts.events, left()), NoModel
        ),
        "2 bytes": lambda: proven(
            prove_memory(parts.statements, parts.events, parts.amounts, {}, none, left()), StepBytes
        ),
        "2 ranges": lambda: proven(
            prove_ranges(wide.statements, wide.events, wide.amounts, {"b": (1, 64)}, none, left()),
            Everywhere,
        ),
        "3 values": lambda: proven(prove_values(parts.statements, parts.events, left()), NoModel),
        "4 races": lambda: proven(prove_races(copies.statements, copies.events, left()), NoModel),
        "5 claims": lambda: proven(
            prove_time(parts.events, sizes, target, claims.time_ns, left()), NoModel
        ),
        "all": lambda: proven(verify(program, schedule, time_limit_s=LIMIT_S), ProvenPlan),
    }


def _median_s(work: Work, repeat: int) -> tuple[float, float]:
    """Medians of elapsed and of processor seconds."""
    times, busy = [], []
    for _ in range(repeat):
        start, cpu = time.perf_counter(), time.process_time()
        work()
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - cpu)
    return statistics.median(times), statistics.median(busy)


def row(program: Program, schedule: Schedule, repeat: int) -> str:
    """One line of the table: elapsed seconds, and processor seconds in brackets."""
    cells = [_median_s(work, repeat) for work in obligations(program, schedule).values()]
    return f"{len(schedule.steps):>8} " + " ".join(f"{a:>6.2f} ({b:.2f})" for a, b in cells)


def gpt2(path: Path) -> tuple[Program, Schedule]:
    """The plan of a 12-layer GPT-2 as `phases.py` makes it."""
    from _common import write_gpt2_onnx

    import remat_compile

    shape = {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "seq": 256, "batch": 4}
    write_gpt2_onnx(path, **shape)
    plan = remat_compile.plan(path, budget="range:0.5", costs="roofline", device="h200")
    return plan.program, plan.schedule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--gpt2", action="store_true", help="a 12-layer GPT-2 too")
    options = parser.parse_args()
    names = list(obligations(*chain(2)))
    print(f"{'steps':>8} " + " ".join(f"{name:>13}" for name in names))
    for steps in options.steps:
        repeat = options.repeat if steps < 100_000 else min(3, options.repeat)
        print(row(*chain(max(1, steps // STEPS_PER_LAYER)), repeat), flush=True)
    if options.gpt2:
        with tempfile.TemporaryDirectory() as folder:
            program, schedule = gpt2(Path(folder) / "gpt2.onnx")
        elapsed, busy = _median_s(
            lambda: verify(program, schedule, time_limit_s=LIMIT_S), options.repeat
        )
        answer = verify(program, schedule, time_limit_s=LIMIT_S)
        assert isinstance(answer, ProvenPlan), answer
        print(f"GPT-2, {len(schedule.steps)} steps: {elapsed:.2f} s ({busy:.2f} of processor)")
        print(f"  {', '.join(answer.proven.obligations)}")


if __name__ == "__main__":
    main()
