"""Updates of an optimizer: all opinions on random plans, whole and broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from helpers.paths import CONFORMANCE
from helpers.programs.random_updates import stirred, with_random_updates
from helpers.programs.strategies import random_program, random_schedule
from helpers.verifier.happens_before import races_by_enumeration, races_by_reachability
from helpers.verifier.opinions import agrees
from helpers.verifier.update_breaks import BREAKS
from remat_compile.ir.analysis.liveness import floor_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program, Target
from remat_compile.ir.schedule import Compute, Home, Schedule, Step
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier import ProvenPlan, Refuted, verify
from remat_compile.verifier.agreement import written
from remat_compile.verifier.check import Accepted, Refused, check

UPDATES = (CONFORMANCE / "valid" / "updates.fbir").read_text(encoding="utf-8")
PLANS = ("device", "homed", "cpu", "mixed")
LINKS = (
    Target("t", d2h_bytes_per_s=10**9, h2d_bytes_per_s=3 * 10**8, copy_latency_ns=7),
    Target("t", d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, both_bytes_per_s=13 * 10**8),
    Target("t", d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, copy_issue_ns=5, copy_latency_ns=3),
    Target("t", d2h_bytes_per_s=10**8, both_bytes_per_s=10**7, copy_issue_ns=900),
)


def planned(seed: object, size: int = 3) -> tuple[Program, Schedule]:
    """A valid plan with updates; two thirds with homes, half of whose updates run on the host."""
    rng = Random(f"updates {seed}")
    program = with_random_updates(rng, random_program(rng, size=size))
    target = replace(rng.choice(LINKS), granularity_bytes=rng.choice((1, 8, 512)))
    program = replace(program, target=target)
    copy, home = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.7, 1.0))
    plan = random_schedule(rng, program, copy=copy, home=home)
    return program, stirred(rng, program, plan, 15)


def kinds_of(program: Program, steps: tuple[Step, ...]) -> Counter[str]:
    """How many updates run on the device, and on the host."""
    kinds = Counter[str]()
    for step in steps:
        if isinstance(step, Compute) and program.graph.cnode[step.cnode].is_update:
            kinds["host" if step.on_host else "device"] += 1
    return kinds


def test_four_opinions_agree_on_random_plans() -> None:
    kinds = Counter[str]()
    for seed in range(60):
        program, plan = planned(seed, size=5)
        assert agrees(program, plan), seed
        kinds += kinds_of(program, plan.steps)
    assert kinds["device"] > 40
    assert kinds["host"] > 20


@pytest.mark.parametrize("part", range(3))
def test_the_proof_has_the_bytes_and_the_time_of_the_simulator(part: int) -> None:
    """And the floor and the least time of the checker; one byte less is refused."""
    for seed in range(8 * part, 8 * part + 8):
        program, plan = planned(seed)
        trace, verdict = simulate(program, plan), verify(program, plan, scope="sample")
        assert isinstance(verdict, ProvenPlan), verdict
        bound, claims = verdict.bounds[0], verdict.proven.certificate
        peaks = trace.peak_bytes, trace.activation_peak_bytes, trace.host_peak_bytes
        assert (bound.device_bytes, bound.activation_bytes, bound.host_bytes) == peaks
        opinion = check(written(program, plan), plan.name)
        assert claims is not None
        assert isinstance(opinion, Accepted)
        least = opinion.time_ns, opinion.least_time_ns, opinion.least_bytes
        assert (claims.time_ns, claims.least_time_ns, claims.least_bytes) == least
        assert trace.time_ns == claims.time_ns >= claims.least_time_ns
        assert claims.least_bytes <= trace.peak_bytes
        for kind, peak in (("device", peaks[0]), ("host", peaks[2])):
            if peak:
                short = (Budget(peak - 1, kind),)  # type: ignore[arg-type]
                assert isinstance(verify(program, plan, short, scope="sample"), Refuted)


@pytest.mark.parametrize("name", BREAKS)
def test_every_opinion_refuses_what_breaks_an_update(name: str) -> None:
    refused = 0
    for seed in range(40):
        rng = Random(f"{name} {seed}")
        program, plan = planned(f"{name} {seed}")
        steps = list(plan.steps)
        if BREAKS[name](rng, program, steps):
            broken = replace(plan, steps=tuple(steps))
            assert not agrees(program, broken), seed
            if refused < 5:  # of the solver, which takes longest
                assert isinstance(verify(program, broken, scope="sample"), Refuted), seed
            refused += 1
    assert refused >= 5


def test_all_opinions_agree_on_any_change_of_a_step() -> None:
    """Steps left out, done twice and moved: whatever comes of it."""
    accepted, asked = 0, Random(0)
    for seed in range(50):
        program, plan = planned(f"any {seed}")
        rng, first = Random(seed), len(plan.homes)
        for _ in range(8):
            steps = list(plan.steps)
            at = rng.randrange(first, len(steps))
            step = steps[at] if rng.random() < 0.3 else steps.pop(at)
            if rng.random() < 0.7:
                steps.insert(rng.randrange(first, len(steps) + 1), step)
            changed = replace(plan, steps=tuple(steps))
            fine = agrees(program, changed)
            accepted += fine
            if asked.random() < 0.1:
                verdict = verify(program, changed, scope="sample")
                assert isinstance(verdict, ProvenPlan if fine else Refuted), (seed, verdict)
    assert 20 < accepted < 300


def test_no_timing_of_valid_plans_has_a_race() -> None:
    """By the clocks in the verifier, by a search for paths, and in every state that is reached."""
    for seed in range(25):
        program, plan = planned(seed, size=2)
        assert races_by_reachability(program, plan) == set()
        if len(plan.steps) < 40:
            assert races_by_enumeration(program, plan) == set()


REFUSED = {
    "fb0210_updated_again": ["FB0802"],
    "fb0210_updates_of_two_sizes": ["FB0802"],
    "fb0226_an_unused_result": ["FB0802"],
    "fb0226_another_operator": ["FB0802"],
    "fb0226_in_the_backward": ["FB0802"],
    "fb0226_makes_a_gradient": ["FB0802"],
    "fb0226_no_argument": ["FB0802"],
    "fb0226_of_a_gradient": ["FB0802"],
    "fb0226_of_a_view": ["FB0802"],
    "fb0226_twice": ["FB0802"],
    "fb0226_with_a_replay_form": ["FB0802"],
    "fb0226_with_a_token": ["FB0802"],
    "fb0301_on_host_then_read": ["FB0804"],
    "fb0301_read_after_its_update": ["FB0805"],
    "fb0301_update_of_what_is_away": ["FB0803"],
    "fb0304_updated_twice": ["FB0805", "FB0805", "FB0810", "FB0810"],
    "fb0305_update_never_run": ["FB0813", "FB0813", "FB0812", "FB0812"],
    "fb0305_updated_freed": ["FB0812"],
    "fb0306_updated_left_alive": ["FB0813"],
    "fb0312_home_given_back_early": ["FB0859"],
    "fb0313_update_before_its_arrival": ["FB0861"],
    "fb0314_gradient_given_back_early": ["FB0851"],
    "fb0314_gradient_not_waited_for": ["FB0862", "FB0856"],
    "fb0314_updated_not_waited_for": ["FB0862", "FB0861"],
    "fb0315_old_contents_prefetched": ["FB0852"],
    "fb0315_on_host_twice": ["FB0852", "FB0852", "FB0855", "FB0855"],
    "fb0315_on_host_without_the_gradient": ["FB0852", "FB0857"],
    "fb0316_on_host_beside_the_device": ["FB0854"],
    "fb0317_old_contents_prefetched": ["FB0853"],
    "fb0319_old_contents_left": ["FB0858"],
    "fb0320_updated_not_waited_for": ["FB0862"],
    "fb0321_updated_offloaded": ["FB0855"],
    "fb0328_updated_given_back": ["FB0819"],
    "fb0328_updated_not_brought_home": ["FB0819"],
    "fb0329_of_another_cnode": ["FB0801"],
}


@pytest.mark.parametrize("stem", REFUSED)
def test_what_the_language_refuses_is_refuted(stem: str) -> None:
    text = (CONFORMANCE / "invalid" / f"{stem}.fbir").read_text(encoding="utf-8")
    program = read_syntax(text)
    verdict = verify(program, program.schedules[0])
    assert isinstance(verdict, Refuted)
    assert [d.code for d in verdict.diagnostics] == REFUSED[stem]
    assert isinstance(check(text, "plan"), Refused)


def plan_of(name: str, text: str = UPDATES) -> tuple[Program, Schedule]:
    program = parse_program(text)
    return program, next(s for s in program.schedules if s.name == name)


def edited(name: str, *changes: tuple[str, str]) -> tuple[Program, Schedule]:
    head, plan, body = UPDATES.partition(f"schedule @{name} ")
    for old, new in changes:
        assert body.count(old) >= 1
        body = body.replace(old, new, 1)
    return plan_of(name, head + plan + body)


@pytest.mark.parametrize(
    ("changes", "simulated", "refuted"),
    [
        (  # The optimizer on the host reads the gradient while it still arrives.
            (
                (" wait %dv; free %dv\n  U2 on host", " U2 on host; wait %dv; free %dv"),
            ),
            "U2 on host reads %dv, of which a copy is in flight",
            "U2 on host may read the host copy of %dv before its offload has written it",
        ),
        (  # The parameter goes to the device while the optimizer still writes it.
            (("wait %w2;", "prefetch %w2; wait %w2; free %w2; wait %w2;"),),
            "prefetch of %w2, of which a copy is in flight",
            "the prefetch of %w2 may read the host copy of %w2 before its update has written it",
        ),
    ],
    ids=["gradient", "parameter"],
)  # fmt: skip
def test_races_of_an_optimizer_on_the_host(
    changes: tuple[tuple[str, str], ...], simulated: str, refuted: str
) -> None:
    """Both races that an offloaded optimizer step is known for, and how each is told."""
    program, plan = edited("cpu", *changes)
    with pytest.raises(FBError) as error:
        simulate(program, plan)
    first = error.value.diagnostics[0]
    assert (first.code, first.message) == ("FB0314", simulated)
    assert first.hint == f"put `wait %{'dv' if 'dv' in simulated else 'w2'}` before it"
    verdict = verify(program, plan)
    assert isinstance(verdict, Refuted)
    race = verdict.diagnostics[0]
    assert (race.code, race.message) == ("FB0862", refuted)
    assert any("it goes wrong in this order" in note.message for note in race.notes)
    assert isinstance(check(written(program, plan), plan.name), Refused)
    assert races_by_reachability(program, plan)


@pytest.mark.parametrize(
    ("name", "changes", "simulated", "refuted"),
    [
        (  # The copy of a state does not wait for the optimizer that writes it.
            "mixed",
            (
                ("wait %m; U2; free %dv;", "wait %m;"),
                ("offload %m2\n", "offload %m2; U2; free %dv\n"),
            ),
            "FB0312",
            ("FB0861", "U2 may write into %m2 while its offload still reads it"),
        ),
        (  # The same on the host: a state goes back while its update still writes it.
            "cpu",
            (("wait %m2;", "prefetch %m2; wait %m2; free %m2; wait %m2;"),),
            "FB0314",
            (
                "FB0862",
                "the prefetch of %m2 may read the host copy of %m2 before its update has written "
                "it",
            ),
        ),
        (  # The buffer of a reload is given to others before the reload is done.
            "mixed",
            (("prefetch %m;", "prefetch %m; free %m;"),),
            "FB0314",
            (
                "FB0861",
                "free %m may give back the bytes of %m while its prefetch still writes them",
            ),
        ),
        (  # A reload does not wait for what still uses the bytes that it writes.
            "homed",
            (("wait %m; U2;", "wait %m; prefetch %m; U2; wait %m;"),),
            "FB0316",
            ("FB0861", "U2 may write into %m while its prefetch still writes it"),
        ),
    ],
    ids=["written", "written on the host", "reused", "overwritten"],
)
def test_races_of_offloaded_states(
    name: str,
    changes: tuple[tuple[str, str], ...],
    simulated: str,
    refuted: tuple[str, str],
) -> None:
    """The three stream races of DeepSpeed#8186 ("all silent if wrong"), made by hand. In the first
    the simulator sees another fault before it, the home that is given back."""
    program, plan = edited(name, *changes)
    with pytest.raises(FBError) as error:
        simulate(program, plan)
    assert error.value.diagnostics[0].code == simulated
    verdict = verify(program, plan)
    assert isinstance(verdict, Refuted)
    assert refuted in [(d.code, d.message) for d in verdict.diagnostics]
    assert isinstance(check(written(program, plan), plan.name), Refused)


@pytest.mark.parametrize("name", PLANS)
def test_the_bytes_of_all_sizes(name: str) -> None:
    """The sizes of what is updated follow the symbol too."""
    program, plan = plan_of(name, UPDATES.replace("bytes 64", "bytes 16*b + 64"))
    traces = [simulate(program, plan, {"b": b}) for b in range(1, 65)]
    peaks = max(t.peak_bytes for t in traces), max(t.host_peak_bytes for t in traces)
    verdict = verify(program, plan, scope="range")
    assert isinstance(verdict, ProvenPlan)
    whole = verdict.bounds[-1]
    assert whole.everywhere
    assert (whole.device_bytes, whole.host_bytes) == peaks
    short = replace(program, target=replace(program.target, memory_bytes=peaks[0] - 1))
    assert isinstance(verify(short, plan, scope="range"), Refuted)


@pytest.mark.parametrize("name", PLANS)
def test_the_floor_and_the_least_time_are_without_updates(name: str) -> None:
    """At B2: %dy 32, %a 128, %da 128, %du 16 and %u, which is away or held; then what is held."""
    program, plan = plan_of(name)
    verdict = verify(program, plan)
    assert isinstance(verdict, ProvenPlan)
    assert verdict.proven.certificate is not None
    held = {"device": 64 + 64, "homed": 0, "cpu": 0, "mixed": 64}[name]
    assert verdict.proven.certificate.least_bytes == 32 + 128 + 128 + 16 + 16 + 128 + held
    assert verdict.proven.certificate.least_time_ns == 2000 + 1000 + 2000 + 3000


def test_no_plan_is_below_the_floor_of_its_homes() -> None:
    """An update on the host needs no bytes of the device, however large what it updates."""
    for seed in range(80):
        program, plan = planned(("floor", seed))
        floor, _ = floor_bytes(program, homes=plan.homes)
        assert floor <= simulate(program, plan).peak_bytes
    for name in PLANS:
        program, plan = plan_of(name, UPDATES.replace("bytes 64", "bytes 6400"))
        floor, where = floor_bytes(program, homes=plan.homes)
        assert floor <= simulate(program, plan).peak_bytes
        assert name != "cpu" or where == "F1"


def test_the_time_of_updates_on_the_host() -> None:
    """U1 and U2 one after the other beside the device: only the waits cost it their time."""
    late = simulate(*plan_of("cpu")).time_ns
    doubled = parse_program(UPDATES.replace("on host 5us", "on host 10us"))
    assert simulate(doubled, doubled.schedules[2]).time_ns == late + 5000
    slow = parse_program(UPDATES.replace("on host 2us", "on host 20us"))
    # U2 begins 4.64us after U1, of which 3us are B1 and 1.64us the offload of %dv.
    assert simulate(slow, slow.schedules[2]).time_ns == late + 20_000 - 4640
    device = parse_program(UPDATES.replace("0) time 1us", "0) time 9us"))
    assert simulate(device, device.schedules[2]).time_ns == late
    assert simulate(device, device.schedules[0]).time_ns == 8000 + 9000 + 9000


def test_an_update_is_told_where_no_step_has_a_place() -> None:
    program, plan = plan_of("cpu")
    steps = [replace(step, span=None) for step in plan.steps if step != Home("m")]
    verdict = verify(program, replace(plan, steps=tuple(steps), span=None))
    assert isinstance(verdict, Refuted)
    number = 1 + next(i for i, s in enumerate(steps) if isinstance(s, Compute) and s.cnode == "U2")
    assert f"U2 on host at step {number}: the host holds no copy of %m" in {
        d.message for d in verdict.diagnostics
    }


@pytest.mark.parametrize("alone", [True, False])
def test_both_readers_read_what_the_printer_writes(alone: bool) -> None:
    program = parse_program(UPDATES)
    text = format_program(program)
    assert 'update(%w, %m, %dw, "torch.optim.SGD", 0) time 1us on host 5us' in text
    assert "\n  U2 on host\n" in text
    assert read_syntax(text, by_grammar_alone=alone) == program
    assert read_syntax(UPDATES.replace("on host", "on \t host"), by_grammar_alone=alone) == program
    for seed in range(10):
        program, plan = planned(seed)
        program = program.with_schedule(plan)
        assert read_syntax(format_program(program), by_grammar_alone=alone) == program
