"""How long obligation 4 takes: races of copies, on schedules of 1e3, 1e4 and 1e5 steps.

    python benchmarks/races.py [--steps 1000 10000 100000] [--repeat 3] [--timings 1000]

Every activation of a chain of layers is copied to the host while the next layers run, and
back before its backward; three copies of each direction are under way at a time. `races` is
the proof; `late` the refutation of the same plan with each tenth wait after a prefetch moved
behind the step that reads; `validity` and `verify` are obligation 1 and all of it. With
`--timings`, the other encoding that was tried: booleans that say what has begun and ended at an
instant of a timing. Prints medians in seconds of processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

from remat_compile.ir.program import Program
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
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.verifier import ProvenPlan, verify
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations.races import Racing, pairs_of, prove_races
from remat_compile.verifier.obligations.validity import prove_validity
from remat_compile.verifier.read.events import Event, unfold
from remat_compile.verifier.read.statements import Statements, read_statements
from remat_compile.verifier.smt import NoModel
from verifier import chain

UNDER_WAY = 3
STEPS_PER_LAYER = 11
LIMIT_S = 600.0


def offloading(layers: int, late_every: int = 0) -> tuple[Program, Schedule]:
    """The chain and its schedule; every `late_every`-th prefetch is waited for too late."""
    program, _ = chain(layers)
    last = layers - 1
    steps: list[Step] = []

    def drain(i: int) -> None:
        if 0 <= i < last:
            steps.extend((Wait(f"a{i}"), Free(f"a{i}")))

    for i in range(layers):
        steps.append(Compute(f"F{i}"))
        if i < last:
            steps.append(Offload(f"a{i}"))
        drain(i - UNDER_WAY)
    for i in range(layers - UNDER_WAY, layers):
        drain(i)
    steps.append(Compute("L"))
    steps += [Prefetch(f"a{i}") for i in range(last - 1, max(-1, last - 1 - UNDER_WAY), -1)]
    for i in reversed(range(layers)):
        if i - 1 - UNDER_WAY >= 0:
            steps.append(Prefetch(f"a{i - 1 - UNDER_WAY}"))
        arrival: list[Step] = [Wait(f"a{i - 1}"), HostFree(f"a{i - 1}")] if i else []
        late = bool(late_every) and i % late_every == 0
        back: list[Step] = [Compute(f"B{i}")]
        steps += [*back, *arrival] if late else [*arrival, *back]
        steps += [Free("t" if i == last else f"d{i + 1}"), Free(f"p{i}")]
        if i:
            steps.append(Free(f"a{i - 1}"))
    return program, Schedule("plan", "", (*steps, Free("d0")))


def _read(program: Program, schedule: Schedule) -> tuple[Statements, list[Event]]:
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    events = unfold(statements, schedule)
    assert isinstance(events, list)
    return statements, events


def _median_s(work: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def row(target: int, repeat: int) -> str:
    """One line of the table, for a schedule of about `target` steps."""
    layers = max(UNDER_WAY + 2, target // STEPS_PER_LAYER)
    program, schedule = offloading(layers)
    simulate(program, schedule)
    statements, events = _read(program, schedule)
    wrong = _read(*offloading(layers, late_every=10))

    def races() -> None:
        answer = prove_races(statements, events, Inquiry(LIMIT_S))
        assert isinstance(answer, NoModel), answer

    def late() -> None:
        assert isinstance(prove_races(*wrong, Inquiry(LIMIT_S)), Racing)

    def validity() -> None:
        assert isinstance(prove_validity(statements, events, Inquiry(LIMIT_S)), NoModel)

    def prove() -> None:
        answer = verify(program, schedule, time_limit_s=LIMIT_S)
        assert isinstance(answer, ProvenPlan), answer

    pairs = sum(1 for _ in pairs_of(statements, events))
    cells = (_median_s(work, repeat) for work in (races, late, validity, prove))
    return f"{len(schedule.steps):>8} {pairs:>8} " + " ".join(f"{cell:>9.3f}" for cell in cells)


def timings(target: int) -> str:
    """The other encoding: one instant of a timing at which both of a pair run."""
    import z3

    statements, events = _read(*offloading(target // STEPS_PER_LAYER))
    pairs = list(pairs_of(statements, events))
    copies = {race.copy.issued: race.copy for race in pairs}
    copies |= {r.use.copy.issued: r.use.copy for r in pairs if r.use.copy is not None}
    waits = {c.waited for c in copies.values() if c.waited is not None}
    points = sorted({*copies, *waits, *(race.use.event for race in pairs)})
    lines = [f"(declare-const b{i} Bool)(declare-const e{i} Bool)(assert (=> e{i} b{i}))"
             for i in points]  # fmt: skip
    lines += [f"(assert (=> b{b} e{a}))" for a, b in pairwise(points)]
    before: dict[str, int] = {}
    for i, copy in sorted(copies.items()):
        lines.append(f"(declare-const s{i} Bool)(declare-const t{i} Bool)")
        lines.append(f"(assert (=> t{i} s{i}))(assert (=> s{i} e{i}))")
        if copy.lane in before:
            lines.append(f"(assert (=> s{i} t{before[copy.lane]}))")
        before[copy.lane] = i
        if copy.waited is not None:
            lines.append(f"(assert (=> b{copy.waited} t{i}))")
    both = []
    for race in pairs:
        i, j = race.copy.issued, race.use.event
        begun, ended = (f"b{j}", f"e{j}") if race.use.copy is None else (f"s{j}", f"t{j}")
        both.append(f"(and s{i} (not t{i}) {begun} (not {ended}))")
    start = time.process_time()
    solver = z3.Solver()
    solver.from_string("".join(lines) + f"(assert (or {' '.join(both)}))")
    answer = solver.check()
    taken = time.process_time() - start
    return f"{len(events):>8} {len(pairs):>8} {taken:>9.3f}  {answer} (instants of a timing)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--timings", type=int, nargs="*", default=[])
    options = parser.parse_args()
    names = ("races", "late", "validity", "verify")
    print(f"{'steps':>8} {'pairs':>8} " + " ".join(f"{name:>9}" for name in names))
    for steps in options.steps:
        print(row(steps, options.repeat), flush=True)
    for steps in options.timings:
        print(timings(steps), flush=True)


if __name__ == "__main__":
    main()
