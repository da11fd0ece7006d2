"""What a forward reads of numbers while it is traced: answered as eager would have it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from remat_compile import FBError
from remat_compile.capture.torch import Lowered, ensure_trusted, export, lower

Asks = Callable[["Asking", Tensor, Tensor], bool]


class Asking(nn.Module):
    """Goes another way where `asks` says so, and never asks while it is compiled, as the masks of
    `transformers` do."""

    held: Tensor
    warned: bool

    def __init__(self, asks: Asks) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("held", torch.ones(2))
        self.asks = asks

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        if not torch.compiler.is_compiling() and self.asks(self, x, mask):
            return y
        return torch.tanh(y)


def _captured(asks: Asks, mask: Tensor | None = None, **options: object) -> Lowered:
    torch.manual_seed(0)
    sample = (torch.randn(2, 4), torch.ones(2, 4, dtype=torch.long) if mask is None else mask)
    with lower(export(Asking(asks), sample, **options)) as lowered:  # type: ignore[arg-type]
        pass
    return lowered


def _has_tanh(lowered: Lowered) -> bool:
    return any("tanh" in c.call.op for c in lowered.program.graph.cnodes)


def _one_sequence(_: Asking, x: Tensor, __: Tensor) -> bool:
    """As `transformers` looks for sequences that are packed into one row."""
    places = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
    packed = (torch.diff(places, prepend=places[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    return bool((packed[:, -1] == 0).all())


def _literal(_: Asking, __: Tensor, ___: Tensor) -> bool:
    return bool(torch.tensor([1.0, 2.0]).max() > 1.5)


def _equal(_: Asking, x: Tensor, __: Tensor) -> bool:
    return torch.equal(torch.arange(x.shape[0]), torch.tensor([0, 1]))


def _several(_: Asking, __: Tensor, ___: Tensor) -> bool:
    first, second = torch.arange(4).split(2)
    return bool(second.sum().item() == 5) and bool(first.unbind()[1] == 1)


@pytest.mark.parametrize("asks", [_one_sequence, _literal, _equal, _several])
def test_numbers_of_sizes_and_literals_are_constants(asks: Asks) -> None:
    lowered = _captured(asks)
    assert not lowered.joint.compiling
    assert not lowered.joint.reads
    assert not lowered.warnings
    assert not _has_tanh(lowered)
    ensure_trusted(lowered)


def test_a_model_on_meta_goes_the_same_way() -> None:
    sample = (torch.randn(2, 4), torch.ones(2, 4, dtype=torch.long))
    on_meta = (x.to("meta") for x in sample)
    with lower(export(Asking(_one_sequence).to("meta"), tuple(on_meta))) as planned:
        assert not _has_tanh(planned)
    with lower(export(Asking(_one_sequence), sample)) as captured:
        calls = [[c.call for c in each.program.graph.cnodes] for each in (planned, captured)]
    assert calls[0] == calls[1]


def _no_padding(_: Asking, __: Tensor, mask: Tensor) -> bool:
    return bool(mask.to(torch.bool).all())


def _counted(_: Asking, __: Tensor, mask: Tensor) -> bool:
    return int(mask.sum()) == 8


@pytest.mark.parametrize(("asks", "number"), [(_no_padding, True), (_counted, 8)])
def test_numbers_of_arguments_are_read_at_the_sample(asks: Asks, number: object) -> None:
    lowered = _captured(asks)
    (read,) = lowered.reads
    assert type(read.number) is type(number)
    assert read.number == number
    assert "test_host_reads.py" in str(read.place)
    (warning,) = [d for d in lowered.warnings if d.code == "FB0524"]
    assert "test_host_reads.py" in warning.message
    assert not _has_tanh(lowered)
    ensure_trusted(lowered)


def test_other_numbers_are_another_way() -> None:
    mask = torch.ones(2, 4, dtype=torch.long)
    mask[0, 2:] = 0
    lowered = _captured(_no_padding, mask)
    assert [read.number for read in lowered.reads] == [False]
    assert _has_tanh(lowered)
    ensure_trusted(lowered)


def _of_a_parameter(model: Asking, _: Tensor, __: Tensor) -> bool:
    return bool(model.a.weight.max() > -10)


def _of_a_buffer(model: Asking, _: Tensor, __: Tensor) -> bool:
    return bool(model.held.sum() == 2)


def _of_random_numbers(_: Asking, __: Tensor, ___: Tensor) -> bool:
    return bool(torch.rand(2).max() < 2)


def _of_no_whole_number(_: Asking, x: Tensor, __: Tensor) -> bool:
    return x.sum().item() < 1e9


def _of_what_is_written_to(_: Asking, x: Tensor, __: Tensor) -> bool:
    kept = torch.zeros(2, 4)
    kept.select(0, 1).add_(x[0])
    return bool(kept.sum() < 1e9)


def _of_much_memory(_: Asking, __: Tensor, mask: Tensor) -> bool:
    return bool(mask.repeat(100, 1).all())


NOT_ANSWERED = (
    _of_a_parameter,
    _of_a_buffer,
    _of_random_numbers,
    _of_no_whole_number,
    _of_what_is_written_to,
    _of_much_memory,
)


@pytest.mark.parametrize("asks", NOT_ANSWERED)
def test_what_is_not_answered_is_traced_as_if_compiling(asks: Asks) -> None:
    lowered = _captured(asks)
    assert lowered.joint.compiling
    assert [d.code for d in lowered.warnings] == ["FB0525"]
    assert not lowered.reads
    assert _has_tanh(lowered)
    with pytest.raises(FBError) as refused:  # eager goes the other way
        ensure_trusted(lowered)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0512"
    assert diagnostic.hint is not None
    assert 'attn_implementation="eager"' in diagnostic.hint


def test_a_dynamic_size_is_no_constant() -> None:
    shapes = {
        "x": {0: torch.export.Dim("batch", min=2, max=8)},
        "mask": {0: torch.export.Dim("batch", min=2, max=8)},
    }
    lowered = _captured(lambda _, x, __: bool(torch.arange(x.shape[0]).max() < 4), None,
                        dynamic_shapes=shapes)  # fmt: skip
    assert lowered.joint.compiling


def _warns(_: Asking, __: Tensor, mask: Tensor) -> bool:
    if bool((mask[:, -1] == 0).any()):
        warnings.warn("there is padding", stacklevel=1)
    return True


def _checks(_: Asking, __: Tensor, mask: Tensor) -> bool:
    if bool((mask > 1).any()):
        raise ValueError("a mask is of zeros and ones")
    return True


def _sets_a_flag(model: Asking, _: Tensor, mask: Tensor) -> bool:
    """Of which the next call may think."""
    if bool((mask[:, -1] == 0).any()):
        model.warned = True
    return True


@pytest.mark.parametrize("asks", [_warns, _checks, _sets_a_flag])
def test_a_number_is_guarded_whatever_the_forward_does_with_it(asks: Asks) -> None:
    lowered = _captured(asks)
    assert [read.number for read in lowered.reads] == [False]
    assert [d.code for d in lowered.warnings] == ["FB0524"]


def test_each_number_is_read_once() -> None:
    mask = torch.ones(2, 4, dtype=torch.long)
    lowered = _captured(lambda _, __, m: all(bool(x == 1) for x in m[0]) and bool(m.all()), mask)
    assert [read.number for read in lowered.reads] == [True] * 5
