"""Seeded mistakes in a plan: each is refuted with its code, at its line, with what led to it.

A mistake is an edit of the plan's text; the table says which line is blamed and which
lines the notes point at, by their text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from helpers.verifier.step_text import (
    GRAPH,
    PLAN,
    SCHEDULE,
    schedule,
    text_of,
    verdict,
    without_spans,
)
from remat_compile.ir.diagnostics import render
from remat_compile.ir.span import Span
from remat_compile.ir.text.parser import read_syntax
from remat_compile.verifier import ProvenPlan, Refuted, verify


@dataclass(frozen=True)
class Mistake:
    """Replace the `nth` (from 1) occurrence of the lines `old` in the plan by `new`.

    `blamed` is the text of the line that the first diagnostic with `code` must point at
    (the title line of the schedule where it is about the whole of it); `noted` are texts
    of lines that its notes must point at, with a word that the note must say.
    """

    name: str
    old: str
    new: str
    code: str
    blamed: str
    noted: tuple[tuple[str, str], ...] = ()
    nth: int = 1
    also: tuple[str, ...] = ()


MISTAKES = (
    Mistake("read before made", "F1 nosave\nF2", "F2\nF1 nosave", "FB0803", "F2",
            (("F1 nosave", "made here, too late"),)),
    Mistake("writer left out", "F5\n", "", "FB0803", "L", (), 1, ("FB0812",)),
    Mistake("recomputation left out", "F3\nF4\nfree %d\n", "F4\nfree %d\n", "FB0804", "F4",
            (("free %d", "freed here"),), 1, ("FB0808",)),
    Mistake("freed too early", "F3\nfree %n\n", "free %n\nF3\n", "FB0804", "F3",
            (("free %n", "freed here"), ("F2", "made here"))),
    Mistake("read of a view of freed storage", "F5\nfree %e\n", "free %e\nF5\n", "FB0804", "F5",
            (("free %e", "freed here"),)),
    Mistake("phantom given up by nosave", "F3\nF4\nfree %d\n", "F3 nosave\nF4\nfree %d\n",
            "FB0804", "B3", (("F3 nosave", "nosave"),), 1, ("FB0808",)),
    Mistake("read after it ended", "B3b\nfree %n\nfree %e\nB1\n", "B1\nB3b\nfree %n\nfree %e\n",
            "FB0805", "B3b", (("B1", "its storage is %dw now"),), 1, ("FB0803",)),
    Mistake("contribution not made yet", "B3b\nfree %n\nfree %e\nB1\n",
            "B1\nB3b\nfree %n\nfree %e\n", "FB0803", "B1", (("B3b", "too late"),), 1, ("FB0805",)),
    Mistake("accumulated twice", "B1\n", "B1\nB1\n", "FB0810", "B1", (("B1", "made here"),), 1,
            ("FB0805",)),
    Mistake("token freed", "free %nrm\n", "free %nrm\nfree %r\n", "FB0806", "F3",
            (("free %r", "freed here"), ("F3", "drawn first here")), 1, ("FB0808",)),
    Mistake("normalisation run again by its effect", "free %nrm\nB5\n", "F1 nosave\nB5\n",
            "FB0813", "F2", (), 1, ("FB0813",)),
    Mistake("buffer written back without its contents", "free %e\nL\nfree %nrm\n",
            "free %e\nfree %nrm\nL\n", "FB0814", "L", (("free %nrm", "freed here"),)),
    Mistake("buffer read after its update", "F2\nfree %h\nF3\n", "F3\n", "FB0807", "F2",
            (("L", "the loss is here"),), 1, ("FB0803", "FB0814", "FB0808", "FB0813")),
    Mistake("buffer never computed", "F2\nfree %h\nF3\n", "F3\n", "FB0814", "L", (), 1,
            ("FB0803", "FB0807", "FB0808", "FB0813")),
    Mistake("double free", "free %dy\n", "free %dy\nfree %dy\n", "FB0808", "free %dy",
            (("free %dy", "freed here"),)),
    Mistake("free of what was never made", "F1 nosave\n", "F1 nosave\nfree %de\n", "FB0808",
            "free %de", (("B5", "too late"),)),
    Mistake("free of a parameter", "free %dy\n", "free %dy\nfree %w\n", "FB0809", "free %w"),
    Mistake("free of an input", "F1 nosave\n", "F1 nosave\nfree %x\n", "FB0809", "free %x"),
    Mistake("loss twice", "L\n", "L\nL\n", "FB0811", "L", (("L", "the loss is here"),)),
    Mistake("no loss", "L\nfree %nrm\n", "free %nrm\n", "FB0811", SCHEDULE, (), 1,
            ("FB0803", "FB0808")),
    Mistake("gradient freed", "free %c\n", "free %c\nfree %dw\n", "FB0812", "free %dw",
            (("B1", "made here"),)),
    Mistake("gradient never made", "B1\nfree %c\n", "free %c\nfree %g1\n", "FB0812", SCHEDULE),
    Mistake("result freed before the loss", "free %e\nL\n", "free %e\nfree %y\nF4\nL\n", "FB0804",
            "L", (("free %y", "freed here"),), 1, ("FB0806", "FB0812")),
    Mistake("result freed after the loss", "L\nfree %nrm\n", "L\nfree %y\nfree %nrm\n", "FB0809",
            "free %y", (("L", "the loss is here"),), 1, ("FB0812",)),
    Mistake("left behind", "free %c\n", "", "FB0813", "B3b"),
    Mistake("phantom left behind", "free %hm\n", "", "FB0813", "F1"),
    Mistake("random operators out of order", "F3\nfree %n\nfree %dm\nF4\n",
            "F4\nF3\nfree %n\nfree %dm\n", "FB0815", "F4", (("F3", "runs first here"),), 1,
            ("FB0803",)),
)  # fmt: skip


def _edit(text: str, old: str, new: str, nth: int) -> str:
    at = -1
    for _ in range(nth):
        at = text.index(old, at + 1)
    return text[:at] + new + text[at + len(old) :]


def _line(text: str, span: Span) -> str:
    return text.splitlines()[span.line - 1].strip()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_a_seeded_mistake_is_refuted_at_its_line(mistake: Mistake) -> None:
    plan = _edit(PLAN, mistake.old, mistake.new, mistake.nth)
    assert plan != PLAN
    answer = verdict(plan)
    assert isinstance(answer, Refuted), answer
    text = text_of(plan)
    matching = [
        d
        for d in answer.diagnostics
        if d.code == mistake.code and d.span and _line(text, d.span) == mistake.blamed
    ]
    shown = "\n".join(render(d, text) for d in answer.diagnostics)
    assert matching, shown
    assert {d.code for d in answer.diagnostics} - {mistake.code} <= set(mistake.also), shown
    for line, words in mistake.noted:
        assert any(
            note.span is not None and _line(text, note.span) == line and words in note.message
            for d in matching
            for note in d.notes
        ), shown


def test_the_mistakes_cover_every_code_of_a_refuted_step() -> None:
    assert {mistake.code for mistake in MISTAKES} == {f"FB08{n:02}" for n in range(3, 16)}


def test_a_random_operator_that_is_left_out_is_missed() -> None:
    """Nothing reads what it makes, but all that draws after it would draw other numbers."""
    graph = GRAPH.replace("  %dy :", "  %z : act f32[2] bytes 8\n  %s : rng u8[8] bytes 8\n  %dy :")
    graph = graph.replace("  L:", "  F6: fwd %z = aten.rand.default([8]) token %s\n  L:")
    answer = verdict(PLAN, graph=graph)
    assert isinstance(answer, Refuted)
    assert [(d.code, d.message) for d in answer.diagnostics] == [
        ("FB0816", "F6 draws random numbers and never runs in @plan")
    ]
    late = verdict(PLAN.replace("L\n", "L\nF6\nfree %z\n"), graph=graph)
    assert isinstance(late, Refuted)
    (diagnostic,) = late.diagnostics
    assert diagnostic.code == "FB0815"
    assert diagnostic.message.startswith("L runs first before F6")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("B5", "B6", "the graph has no cNode B6"),
        ("free %dy", "free %dz", "the graph has no aNode %dz"),
        ("free %dy", "free %ev", "It is a view of %e"),
    ],
)
def test_steps_that_name_nothing_are_refused(old: str, new: str, words: str) -> None:
    text = text_of(_edit(PLAN, f"{old}\n", f"{new}\n", 1))
    made = read_syntax(text, "step.fbir")
    answer = verify(made, made.schedules[0])
    assert isinstance(answer, Refuted)
    (diagnostic,) = answer.diagnostics
    assert diagnostic.code == "FB0801"
    assert words in diagnostic.message
    assert diagnostic.span is not None
    assert _line(text, diagnostic.span) == new


def test_what_the_loss_makes_of_kind_output_is_not_called_a_result() -> None:
    graph = GRAPH.replace("%dy : tangent", "%dy : output")
    away = "offload %dy\nwait %dy\nfree %dy\nprefetch %dy\nwait %dy\nhostfree %dy\n"
    answer = verdict(PLAN.replace("free %dy\n", away), graph=graph)
    assert isinstance(answer, Refuted)
    assert [(d.code, d.message) for d in answer.diagnostics] == [
        ("FB0809", "free of %dy, an output of the loss: the caller holds it since the loss")
    ]
    kept = verdict(PLAN.replace("free %dy\n", ""), graph=graph)
    assert isinstance(kept, ProvenPlan)


def test_all_mistakes_are_reported_at_once() -> None:
    plan = _edit(_edit(PLAN, "free %dy\n", "free %dy\nfree %w\n", 1), "free %c\n", "", 1)
    answer = verdict(_edit(plan, "free %nrm\n", "", 1))
    assert isinstance(answer, Refuted)
    assert [d.code for d in answer.diagnostics] == ["FB0809", "FB0813", "FB0813"]


def test_a_plan_without_a_text_is_explained_by_step_numbers() -> None:
    made, plan = schedule(_edit(PLAN, "F5\nfree %e\n", "free %e\nF5\n", 1))
    answer = verify(made, without_spans(plan))
    assert isinstance(answer, Refuted)
    (diagnostic,) = answer.diagnostics
    assert diagnostic.span is None
    assert diagnostic.message == (
        'F5 (m.py:7 "head") at step 10 reads %e (through %ev), which was freed'
    )
    assert [note.message for note in diagnostic.notes] == [
        "%e is made here: step 7, F4",
        "freed here: step 9, free %e",
        "made again here, too late: step 20, F4",
        "read here: step 10, F5",
    ]


def test_a_counterexample_never_shows_the_solver() -> None:
    solver = re.compile(r"\b(alive|done|drawn|held|act)\d+(_\d+)?\b|declare-|\(ite|\(assert|unsat")
    assert solver.search("(assert (not alive3_1))")
    for mistake in MISTAKES:
        answer = verdict(_edit(PLAN, mistake.old, mistake.new, mistake.nth))
        assert isinstance(answer, Refuted)
        for diagnostic in answer.diagnostics:
            assert not solver.search(render(diagnostic))
