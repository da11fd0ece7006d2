"""Which values are packed, how a graph is packed, and what a schedule can do without."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from helpers.paths import CONFORMANCE
from remat_compile.ir.checks.wellformed import check_program
from remat_compile.ir.codecs import CODECS, pairs
from remat_compile.ir.program import Program
from remat_compile.ir.rewrites.packs import Choice, erased, has_packs, pack
from remat_compile.ir.schedule import Compute, Free, Offload, Schedule, Step, Wait
from remat_compile.ir.semantics.simulate import Trace, simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program
from remat_compile.planners.compression.lossless import (
    LEAST_SAVED,
    Contiguous,
    choices_of,
    lossless,
)
from remat_compile.planners.compression.unneeded import without_unneeded
from remat_compile.report.subject import store_all
from remat_compile.verifier import ProvenPlan, verify

# Two ReLUs, one before a pool and one before a product that reads it; a mask that two read; an
# activation that the forward reads late.
TEXT = """fbir 1
sym b in [1, 64] = 16 of arg 0 dim 0
graph @net {
  %x : input f32[b, 4, 16, 16] bytes 4096*b
  %w : param f32[64, 64] bytes 16384
  %c : act f32[b, 4, 16, 16] bytes 4096*b
  %y : act f32[b, 4, 16, 16] bytes 4096*b
  %o : act f32[b, 4, 8, 8] bytes 1024*b
  %i : phantom i64[b, 4, 8, 8] bytes 2048*b
  %z : act f32[b, 4, 8, 8] bytes 1024*b
  %m : phantom bool[b, 4096] bytes 4096*b
  %s : act bool[b, 4096] bytes 4096*b
  %r : output f32[b] bytes 4*b
  %dr : tangent f32[b] bytes 4*b
  %g1 : grad f32[b, 4, 8, 8] bytes 1024*b
  %g2 : grad f32[b, 4, 8, 8] bytes 1024*b
  %g3 : grad f32[b, 4, 16, 16] bytes 4096*b
  %g4 : grad f32[b, 4, 16, 16] bytes 4096*b
  %dw : param_grad f32[64, 64] bytes 16384
  %yd = view of %y aten.detach.default(%y)
  %ydd = view of %y aten.detach.default(%yd)
  %mv = view of %m aten.view.default(%m, [b, 64, 64])
  %mw = view of %m aten.view.default(%m, [b, 64, 64])
  F1: fwd %c = ns.conv(%x, %w) time 50us
  F2: fwd %y = aten.relu.default(%c) time 5us
  F3: fwd %o, %i = aten.adaptive_max_pool2d.default(%y, [8, 8]) time 5us
  F4: fwd %z, %m, %s = ns.drop(%o, %w) time 5us
  F5: fwd %r = ns.head(%z, %s) time 5us
  L: loss %dr = loss(%r)
  B5: bwd %g1 = ns.dhead(%dr, %z, %mw, %s) of F5 time 5us
  B4: bwd %g2 = ns.ddrop(%g1, %mv, %m) of F4 time 5us
  B3: bwd %g3 = aten.adaptive_max_pool2d_backward.default(%g2, %yd, %i) of F3 time 5us
  B2: bwd %g4 = aten.threshold_backward.default(%g3, %ydd, 0) of F2 time 5us
  B1: bwd %dw = ns.dconv(%g4, %x) of F1 time 50us
}
bind {
  arg "x" = %x
  param "w" = %w grad %dw
  result %r tangent %dr
}
"""


def program(text: str = TEXT) -> Program:
    return parse_program(text)


def choices_in(net: Program, is_contiguous: Contiguous = lambda _: True) -> list[Choice]:
    return choices_of(net, is_contiguous, lossless(), lambda _: True)


def chosen(net: Program) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(c.source, c.codec.name, c.readers) for c in choices_in(net)]


def packed(net: Program) -> Program:
    """With a time for each codec."""
    made = pack(net, choices_in(net))
    cnodes = (
        replace(c, time_ns=1000) if c.time_ns is None and not c.is_loss else c
        for c in made.graph.cnodes
    )
    return replace(made, graph=replace(made.graph, cnodes=tuple(cnodes)))


def test_all_that_codecs_give_back_is_chosen() -> None:
    """%z is read for its values; %s and %m are masks, of which the forward reads one."""
    assert chosen(program()) == [
        ("y", "shape", ("B3",)),
        ("y", "signs", ("B2",)),
        ("i", "narrow_u8", ("B3",)),
        ("m", "bits", ("B5", "B4")),
        ("s", "bits", ("B5",)),
    ]


@pytest.mark.parametrize(
    ("was", "now", "left"),
    [
        ("ns.dconv(%g4, %x)", "ns.dconv(%g4, %x, %y)", "y"),  # its values are read too
        ("(%g3, %ydd, 0)", "(%g3, %ydd, 1)", "y"),  # another threshold
        ("aten.detach.default(%yd)", "aten.view.default(%yd, [b, 4, 16, 16])", "y"),
        ("%y : act f32", "%y : act i32", "y"),
        ("aten.adaptive_max_pool2d.default(%y", "ns.pool(%y", "i"),
        ("%i : phantom", "%i : act", "i"),  # somebody keeps it for a reason of his own
        ("%y : act f32[b, 4, 16, 16]", "%y : act f32[b, 4, b, 16]", "i"),  # of unknown extent
    ],
)
def test_what_is_left_whole(was: str, now: str, left: str) -> None:
    assert was in TEXT
    text = TEXT.replace(was, now).replace(
        "f32[b, 4, b, 16] bytes 4096*b", "f32[b, 4, b, 16] bytes 4096*b*b"
    )
    names = {source for source, _, _ in chosen(read_syntax(text, "net.fbir"))}
    assert left not in names
    assert "m" in names or left == "i"


def test_tensors_that_are_not_contiguous_are_left_whole() -> None:
    names = {c.source for c in choices_in(program(), lambda name: name != "m")}
    assert names == {"y", "i", "s"}


def test_little_is_not_worth_it() -> None:
    """A mask of 4096 bytes becomes 512: less is saved than the least."""
    assert LEAST_SAVED == 4096
    assert chosen(program(TEXT.replace("= 16 of", "= 1 of"))) == []


def test_packing_is_undone_exactly_for_every_choice() -> None:
    """Whatever is packed, in whichever order: well-formed, read back, and erased to what it was."""
    net = program()
    choices = choices_in(net)
    for taken in product((False, True), repeat=len(choices)):
        some = [c for c, take in zip(choices, taken, strict=True) if take]
        for order in (some, some[::-1]):
            made = pack(net, order)
            assert not check_program(made)
            assert parse_program(format_program(made)) == made
            assert erased(made) == net
            assert has_packs(made.graph) == bool(some)
    everything = pack(net, choices)
    for source in ("y", "i", "m", "s"):
        left = erased(everything, {source})
        assert {p.source for p in pairs(left.graph)} == {"y", "i", "m", "s"} - {source}
        assert not check_program(left)
    assert erased(erased(everything, {"y", "m"}), {"i", "s"}) == net


def test_each_reader_has_an_instance_of_its_own() -> None:
    net = pack(program(), [Choice("m", CODECS["bits"], ("B5", "B4"))])
    assert [p.stand_in for p in pairs(net.graph)] == ["m_B5", "m_B4"]
    order = [c.name for c in net.graph.cnodes]
    assert order.index("F4_bits") == order.index("F4") + 1
    assert order.index("B4_bits") == order.index("B4") - 1
    assert net.graph.reads(net.graph.cnode["B4"]) == ("g1", "m_B4")


def test_names_that_are_taken_are_left_alone() -> None:
    text = TEXT.replace("%s", "%m_bits").replace("F5", "F4_bits")
    net = pack(program(text), [Choice("m", CODECS["bits"], ("B5", "B4"))])
    assert {"m_bits", "m_bits_1"} <= set(net.graph.anode)
    assert {"F4_bits", "F4_bits_1"} <= set(net.graph.cnode)
    assert erased(net) == program(text)


def test_packed_plans_are_proven_and_keep_less() -> None:
    net = program()
    made = packed(net)
    whole, small = (simulate(p, store_all(p)) for p in (net, made))
    assert isinstance(verify(made, store_all(made), scope="range"), ProvenPlan)
    # By hand, in units of b: y 4096 + i 2048 + z 1024 + m 4096 + s 4096 and the results; then bits
    # of y, m and s (128 and twice 512), an eighth of i, z, and 4 bytes of the shape.
    assert whole.during_activation[whole.loss_step] == 16 * (15360 + 4 + 4)
    assert small.during_activation[small.loss_step] == 16 * (128 + 1024 + 256 + 1024 + 8) + 4


def test_what_a_schedule_can_do_without() -> None:
    """Within the bytes of the whole step nothing is packed; else what saves most for its time."""
    made = packed(program())
    schedule = store_all(made)
    small = simulate(made, schedule)

    def within(limit: int) -> tuple[set[str], int]:
        def fits(trace: Trace) -> bool:
            return trace.activation_peak_bytes <= limit

        found = without_unneeded(made, schedule, fits)
        if found is None:
            return {p.source for p in pairs(made.graph)}, small.time_ns
        net, steps = found
        trace = simulate(net, steps)
        assert trace.activation_peak_bytes <= limit
        assert isinstance(verify(net, steps), ProvenPlan)
        return {p.source for p in pairs(net.graph)}, trace.time_ns

    whole = simulate(program(), store_all(program()))
    assert within(whole.activation_peak_bytes) == (set(), whole.time_ns)
    assert within(0)[0] == {"y", "i", "m", "s"}
    limits = range(small.activation_peak_bytes, whole.activation_peak_bytes, 4096)
    found = [within(limit) for limit in limits]
    times = [time_ns for _, time_ns in found]
    assert times == sorted(times, reverse=True)
    assert len({len(sources) for sources, _ in found}) == 2


def test_schedules_that_copy_or_make_a_source_again() -> None:
    """A packed value on the host stays packed. A source that runs again lives on in between."""
    text = (CONFORMANCE / "valid" / "packed.fbir").read_text(encoding="utf-8")
    net = parse_program(text)
    moved = next(s for s in net.schedules if s.name == "moved")
    found = without_unneeded(replace(net, schedules=()), moved, lambda _: True)
    assert found is not None
    assert {p.source for p in pairs(found[0].graph)} == {"m"}
    assert Offload("mp") in found[1].steps
    assert Wait("mp") in found[1].steps
    assert isinstance(verify(*found), ProvenPlan)
    made = packed(program())
    steps = list(store_all(made).steps)
    at = steps.index(Compute("B4_bits"))
    forward: list[Step] = [
        Compute("F1"),
        Compute("F2"),
        Free("c"),
        Compute("F3"),
        Free("y"),
        Free("i"),
    ]
    steps[at:at] = [*forward, Compute("F4"), Free("o"), Free("z"), Free("m"), Free("s")]
    again = Schedule("again", "", tuple(steps))
    assert isinstance(verify(made, again), ProvenPlan)
    found = without_unneeded(made, again, lambda _: True)
    assert found is not None
    assert isinstance(verify(*found), ProvenPlan)
