"""Packed values: what the language, the verifier's own reader and the checker each refuse."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from helpers.paths import TESTS
from remat_compile.ir.analysis.packs import erased
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.verifier import ProvenPlan, Refuted, verify
from remat_compile.verifier.check import Accepted, Refused, check
from remat_compile.verifier.obligations.values import encode_values
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.statements import Statements, read_statements

TEXT = (TESTS.parent / "spec" / "conformance" / "valid" / "packed.fbir").read_text()

SHAPED = "aten.max_pool2d_with_indices_backward.default(%dm, %yv,"
VIEWED = "  %yw = view of %ys aten.view.default(%yv, [1, 4, 16])\n"
THRESHOLD = "remat_compile.threshold_backward_signs.default(%gp, %ypd)"

# What is written otherwise, each the only fault in the graph.
FAULTS = {
    "a codec that is not there": ("unpack_bits", "unpack_bytes"),
    "another codec makes it again": ("unpack_bits.default(%mp", "unpack_bits.default(%yp"),
    "a packed value is packed": ("pack_bits.default(%m)", "pack_bits.default(%yp)"),
    "a view is packed": ("pack_shape.default(%y)", "pack_shape.default(%yd)"),
    "storage of the caller is packed": ("pack_bits.default(%m)", "pack_bits.default(%x)"),
    "a result is packed": ("pack_signs.default(%y)", "pack_signs.default(%r)"),
    "another type is packed": ("pack_signs.default(%y)", "pack_signs.default(%i)"),
    "a phantom is packed": ("%m : act bool", "%m : phantom bool"),
    "more is given to it": ("pack_bits.default(%m)", "pack_bits.default(%m, 8)"),
    "two results": ("fwd %mp = remat", "fwd %mp, _ = remat"),
    "a replay form": (
        "pack_bits.default(%m) time 1us",
        "pack_bits.default(%m) time 1us replay { %mp = ns.other(%m) }",
    ),
    "it is packed when another cNode runs again": (
        "ns.sum(%d) time 1us",
        "ns.sum(%d) time 1us replay { %r = remat_compile.pack_bits.default(%m) }",
    ),
    "the shape of another": ("(%mp, [1, 4, 16])", "(%mp, [1, 16, 4])"),
    "no shape": ("(%mp, [1, 4, 16])", "(%mp)"),
    "a codec that is read is made again": ("unpack_bits.default", "unpack_signs.default"),
    "it is declared of another shape": ("%mq : grad bool[1, 4, 16]", "%mq : grad bool[4, 16]"),
    "it is declared of another type": ("%mq : grad bool[", "%mq : grad u8["),
    "it is kept": ("%mq : grad bool", "%mq : output bool"),
    "indices that may be too large": (
        *("4, 4, 4]", "4, 4, 100]", "bytes 256", "bytes 6400"),
        *("%yp : phantom u8[8] bytes 8", "%yp : phantom u8[200] bytes 200"),
    ),
    "indices of an unknown operator": ("aten.max_pool2d_with_indices.default(%y", "ns.pool(%y"),
    "indices are another result": ("fwd %o, %i =", "fwd %i, %o ="),
    "fewer bits than elements": (
        *("%mp : phantom u8[8] bytes 8", "%mp : phantom u8[7] bytes 7"),
    ),
    "indices that are packed in one": (
        *("%ip : phantom u8[1, 4, 2, 2] bytes 16", "%ip : phantom u8[1] bytes 1"),
    ),
    "a shape that is packed in another type": (
        *("%ys : phantom f32[1] bytes 4", "%ys : phantom f64[1] bytes 8"),
    ),
    "a packed value is read": ("ns.undrop(%dr, %mv)", "ns.undrop(%dr, %mv, %mp)"),
    "a packed value is viewed": ("aten.view.default(%mq, [64])", "aten.view.default(%mp, [64])"),
    "the shape of another is expanded": ("(%ys, [1, 4, 4, 4])", "(%ys, [1, 4, 16])"),
    "a stand-in for the shape is read": ("ns.grad(%gt, %x)", "ns.grad(%gt, %x, %yv)"),
    "a stand-in in another place": (
        *("(%dm, %yv, [2, 2], [2, 2], [0, 0], [1, 1], false, %iq)",),
        *("(%yv, %dm, [2, 2], [2, 2], [0, 0], [1, 1], false, %iq)",),
    ),
    "a stand-in in two places": (SHAPED, SHAPED.replace("%dm", "%yv")),
    "a stand-in by keyword": (
        *("%dm, %yv, [2, 2], [2, 2], [0, 0], [1, 1], false, %iq)",),
        *("%dm, %dm, [2, 2], [2, 2], [0, 0], [1, 1], false, %iq, self=%yv)",),
    ),
    "a stand-in in a list": (SHAPED, SHAPED.replace("%yv", "[%yv]")),
    "a stand-in through another view": (
        *("expand.default(%ys, [1, 4, 4, 4])\n", "expand.default(%ys, [1, 4, 4, 4])\n" + VIEWED),
        *(SHAPED, SHAPED.replace("%yv", "%yw")),
    ),
    "signs are read as they are": (THRESHOLD, "aten.threshold_backward.default(%gp, %ypd, 0)"),
    "flags of another codec are read": (THRESHOLD, THRESHOLD.replace("%ypd", "%mp")),
    "what is not packed is read": (THRESHOLD, THRESHOLD.replace("%ypd", "%gp")),
    "signs in place of the gradient": (THRESHOLD, THRESHOLD.replace("%gp, %ypd", "%ypd, %gp")),
    "signs twice": (THRESHOLD, THRESHOLD.replace("%gp", "%ypd")),
    "a stand-in in place of the gradient": (THRESHOLD, THRESHOLD.replace("%gp", "%yv")),
    "another threshold": (THRESHOLD, THRESHOLD.replace("%ypd", "%ypd, 1")),
    "signs through another view": ("%ypd = view of %yp aten.detach", "%ypd = view of %yp aten.t"),
    "signs make another type": (
        *("%gt : grad f32[1, 4, 4, 4] bytes 256", "%gt : grad f64[1, 4, 4, 4] bytes 512"),
    ),
    "signs make another shape": (
        *("%gt : grad f32[1, 4, 4, 4] bytes 256", "%gt : grad f32[4, 4, 4] bytes 256"),
    ),
    "signs are read when it runs again": (
        f"{THRESHOLD} of F2",
        f"{THRESHOLD} replay {{ %gt = {THRESHOLD} }} of F2",
    ),
    "a codec as a view": ("aten.view.default(%mq, [64])", "remat_compile.pack_bits.default(%mq)"),
    "a codec in a region": (
        "ns.undrop(%dr, %mv)",
        "fused(%dr, %mv) { %t = remat_compile.pack_bits.default(%mv); %dm = ns.undrop(%dr, %t) }",
    ),
}  # fmt: skip

# Schedules of right graphs: what is missing or in the way, by the steps that are written otherwise.
STEPS = {
    "what is packed is freed before": ("F4p; free %m;", "free %m; F4p;"),
    "the packed value is freed": ("free %d; L\n  B4u", "free %d; free %mp; L\n  B4u"),
    "it is not made again": ("L\n  B4u; free %mp; B4; free %mq;", "L\n  free %mp; B4;"),
    "what was made again is freed": ("B4; free %mq;", "free %mq; B4;"),
    "the single element is freed": ("B3; free %ys;", "free %ys; B3;"),
    "a packed value is left": ("free %yp;", ""),
    "an instance is left": ("free %iq;", ""),
    "the signs are freed": ("B2; free %yp;", "free %yp; B2;"),
    "the source is packed late": ("F2p; F2s; free %y;", "F2p; free %y; F2s;"),
}


def opinions(text: str) -> tuple[list[str], set[str], bool]:
    """The codes of the language and of the verifier, and whether the checker refuses."""
    try:
        parse_program(text, "packed.fbir")
        codes = []
    except FBError as error:
        codes = [d.code for d in error.diagnostics]
    program = read_syntax(text, "packed.fbir")
    answer = verify(program, program.schedules[0], text=text)
    found = {d.code for d in answer.diagnostics} if isinstance(answer, Refuted) else set()
    return codes, found, isinstance(check(text, "kept"), Refused)


def planned(name: str = "kept", text: str = TEXT) -> tuple[Program, Schedule]:
    program = parse_program(text, "packed.fbir")
    return program, next(s for s in program.schedules if s.name == name)


@pytest.mark.parametrize("name", ["kept", "moved"])
def test_all_take_packed_values(name: str) -> None:
    program, schedule = planned(name)
    trace = simulate(program, schedule)
    verdict, opinion = verify(program, schedule, text=TEXT), check(TEXT, name)
    assert isinstance(verdict, ProvenPlan)
    assert isinstance(opinion, Accepted)
    assert verdict.proven.device_bytes == opinion.peak.device == trace.peak_bytes
    (codecs,) = (a.text for a in verdict.assuming if a.key == "codecs")
    assert re.findall(r"(\w+) \((\d)\):", codecs) == [
        *(("signs", "1"), ("shape", "1"), ("narrow_u8", "1"), ("bits", "1")),
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_language_verifier_and_checker_each_refuse(fault: str) -> None:
    text = TEXT
    for was, now in zip(FAULTS[fault][::2], FAULTS[fault][1::2], strict=True):
        assert was in text
        text = text.replace(was, now)
    codes, found, refuses = opinions(text)
    assert {*codes} & {"FB0233", "FB0206"}
    assert found == {"FB0802"}
    assert refuses


@pytest.mark.parametrize("fault", STEPS)
def test_a_wrong_schedule_is_refused_by_all(fault: str) -> None:
    was, now = STEPS[fault]
    head, _, steps = TEXT.partition("schedule @kept")
    assert was in steps.partition("schedule")[0]
    text = f"{head}schedule @kept{steps.replace(was, now, 1)}"
    program, schedule = planned(text=text)
    with pytest.raises(FBError) as refused:
        simulate(program, schedule)
    assert {d.code for d in refused.value.diagnostics} & {"FB0301", "FB0306"}
    assert isinstance(verify(program, schedule, text=text), Refuted)
    assert isinstance(check(text, "kept"), Refused)


def test_each_axiom_is_one_equality_at_the_values_of_the_graph() -> None:
    """T of a source is what its writer and its unpacking give; T of what reads a stand-in is what
    its operator gives of the source, and of the stand-in."""
    program, schedule = planned()
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    assert statements.packs.exact == {"iq", "mq"}
    events = unfold(statements, schedule)
    assert isinstance(events, list)
    (part,) = encode_values(statements, events).encoding.parts
    defined = Counter(re.findall(r"^\(assert \(= (T\d+) \(f", "\n".join(part.lines), re.MULTILINE))
    # %m and %i; and, of what reads stand-ins, %gp and %gt.
    assert sorted(defined.values())[-5:] == [1, 2, 2, 2, 2]


def test_the_erased_graph_has_no_codec_and_is_well_formed() -> None:
    program, _ = planned()
    without = erased(program)
    assert not [c for c in without.graph.cnodes if "remat_compile" in c.call.op]
    assert [c.name for c in without.graph.cnodes] == [
        *(f"F{i}" for i in range(1, 6)),
        "L",
        "B4",
        "B3",
        "B2",
        "B1",
    ]
    kinds = {a.name: a.kind for a in without.graph.anodes}
    assert (kinds["m"], kinds["i"], kinds["y"]) == ("phantom", "phantom", "act")
    assert erased(without) is without
    assert replace(program, graph=without.graph) != program
