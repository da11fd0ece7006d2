"""Certificates that say more than was proven: edited, or sealed again after the edit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from remat_compile.ir.program import Certificate, Program, Proven
from remat_compile.ir.span import Span
from remat_compile.verifier import ProvenPlan, verify
from remat_compile.verifier.certificate import seal

from .case import FILE, Case, Mutant
from .registry import seeds

PLACE = Span(1_000_000, 1, 7, FILE)


@cache
def _proven(case: Case) -> tuple[Proven, Certificate]:
    answer = verify(case.program, case.schedule)
    assert isinstance(answer, ProvenPlan)
    certificate = answer.proven.certificate
    assert certificate is not None
    return replace(answer.proven, span=PLACE), certificate


def _holding(case: Case, proven: Proven) -> Program:
    return replace(case.program, schedules=(case.schedule,), proven=(proven,))


@seeds("certificate with a smaller bound", "certificate")
def smaller_bound(case: Case, kind: str) -> Iterator[Mutant]:
    proven, _ = _proven(case)
    for field in ("device_bytes", "activation_bytes"):
        edited = replace(proven, **{field: getattr(proven, field) - 1})
        made = _holding(case, edited)
        yield case.mutant(kind, None, "FB0831", program=made, place=PLACE)


@seeds("certificate with an obligation more", "certificate")
def more_obligations(case: Case, kind: str) -> Iterator[Mutant]:
    proven, _ = _proven(case)
    edited = replace(proven, obligations=(*proven.obligations, "speed"))
    yield case.mutant(kind, None, "FB0831", program=_holding(case, edited), place=PLACE)


@seeds("certificate of other steps", "certificate")
def other_steps(case: Case, kind: str) -> Iterator[Mutant]:
    proven, _ = _proven(case)
    for event in case.events:
        if event.cnode is None:
            edit = case.edit()
            edit.drop(event.index)
            made = case.mutant(kind, edit, "FB0830", place=PLACE)
            held = replace(case.program, schedules=(made.schedule,), proven=(proven,))
            yield replace(made, program=held)


def _resealed(case: Case, kind: str, code: str, **changes: Any) -> Mutant:
    proven, certificate = _proven(case)
    edited = replace(certificate, **changes)
    edited = replace(edited, seal_sha256=seal(proven, edited))
    made = _holding(case, replace(proven, certificate=edited))
    return case.mutant(kind, None, code, program=made, place=PLACE)


@seeds("claimed time too small", "certificate")
def less_time(case: Case, kind: str) -> Iterator[Mutant]:
    _, certificate = _proven(case)
    yield _resealed(case, kind, "FB0870", time_ns=certificate.time_ns - 1)


@seeds("claimed least time too large", "certificate")
def more_least_time(case: Case, kind: str) -> Iterator[Mutant]:
    _, certificate = _proven(case)
    yield _resealed(case, kind, "FB0871", least_time_ns=certificate.least_time_ns + 1)


@seeds("claimed least memory too large", "certificate")
def more_least_bytes(case: Case, kind: str) -> Iterator[Mutant]:
    _, certificate = _proven(case)
    yield _resealed(case, kind, "FB0871", least_bytes=certificate.least_bytes + 1)
