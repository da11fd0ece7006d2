"""Operators without a lowering: all at once, with the model's lines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from helpers.paths import fbir
from remat_compile.backends.jax.honoured import honoured
from remat_compile.backends.jax.support import operators, require_lowerings
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program


class Exotic(nn.Module):
    """Two operators that no lowering exists for, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.lgamma(self.fc(x).abs() + 1)
        x = torch.special.i0e(x)
        out: Tensor = torch.lgamma(x + 1) + torch.lgamma(x + 2)
        return out.cumsum(0)


def test_all_operators_are_named_with_their_lines() -> None:
    with lower(export(Exotic(), (torch.ones(2, 4),))) as lowered:
        program = lowered.program
    with pytest.raises(FBError) as refused:
        require_lowerings(program.graph)
    by_operator = {d.message.split()[0]: d for d in refused.value.diagnostics}
    assert {"aten.lgamma.default", "aten.special_i0e.default"} <= set(by_operator)
    assert {d.code for d in by_operator.values()} == {"FB0920"}
    lgamma = by_operator["aten.lgamma.default"].message
    assert lgamma.count("test_jax_support.py:") == 2  # two lines of the model
    assert all(d.hint and "docs/guide/jax.md" in d.hint for d in by_operator.values())
    assert set(by_operator) < operators(program.graph)


def test_a_file_shows_where_it_is_used() -> None:
    with lower(export(Exotic(), (torch.ones(2, 4),))) as lowered:
        text = format_program(lowered.program)
    with pytest.raises(FBError) as refused:
        require_lowerings(parse_program(text, "exotic.fbir").graph)
    for d in refused.value.diagnostics:
        assert d.span is not None
        assert d.message.split()[0] in text.splitlines()[d.span.line - 1]


def test_many_lines_are_counted() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.lgamma(self.fc(x).abs() + 1)
            x = torch.lgamma(x + 1)
            x = torch.lgamma(x + 1)
            x = torch.lgamma(x + 1)
            return torch.lgamma(x + 1)

    with (
        lower(export(Deep(), (torch.ones(2, 4),))) as lowered,
        pytest.raises(FBError, match="and 2 more"),
    ):
        require_lowerings(lowered.program.graph)


CALLS = fbir("backends/jax/texts/support")


@pytest.mark.parametrize(
    ("is_sorted", "created", "code", "line", "words"),
    [
        ("false", "zeros_like.default(%w)", "FB0947", 11, "given sorted=False; in JAX"),
        ("true", "zeros_like.default(%w, layout=layout:sparse_coo)", "FB0947", 13, "sparse_coo"),
        ("true", "zeros_like.default(%w, dtype:f32, device:cpu)", "FB0948", 13, "too many"),
        ("true", "zeros_like.default(%w, colour=1)", "FB0948", 13, "'colour'"),
        ("true", "zeros_like.default(dtype=dtype:f32)", "FB0948", 13, "'x'"),
    ],
)
def test_an_argument_that_a_lowering_does_not_honour(
    is_sorted: str, created: str, code: str, line: int, words: str
) -> None:
    text = CALLS.replace("SORTED", is_sorted).replace("CREATED", created)
    with pytest.raises(FBError) as refused:
        require_lowerings(parse_program(text, "calls.fbir").graph)
    diagnostic = next(d for d in refused.value.diagnostics if d.code == code)
    assert words in diagnostic.message
    assert diagnostic.span is not None
    assert diagnostic.span.line == line
    assert diagnostic.hint


def test_arguments_that_mean_nothing_are_left_out() -> None:
    created = "zeros_like.default(%w, layout=layout:strided, device=device:cpu, pin_memory=false)"
    text = CALLS.replace("SORTED", "true").replace("CREATED", created)
    graph = parse_program(text).graph
    require_lowerings(graph)
    calls = {c.name: honoured(c.call) for c in graph.cnodes}
    assert calls["B1"].kwargs == ()
    assert len(calls["F1"].args) == 4


def test_complex_numbers_are_refused() -> None:
    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(self.fc(x)).abs()

    with (
        lower(export(Spectrum(), (torch.ones(2, 4),))) as lowered,
        pytest.raises(FBError) as refused,
    ):
        require_lowerings(lowered.program.graph)
    assert "FB0921" in {d.code for d in refused.value.diagnostics}
