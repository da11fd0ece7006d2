"""Calls whose numbers send the forward another way than the sample's did; and caches of text."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import remat_compile
from helpers.training import assert_bit_equal, assert_same_tensors, train_steps
from remat_compile import FBError

IDS = torch.arange(24).reshape(2, 12) % 17
FULL = torch.ones(2, 12, dtype=torch.long)
PADDED = torch.where(torch.arange(12) < torch.tensor([[12], [8]]), 1, 0)


class Attention(nn.Module):
    """Attention as `transformers` calls it: by `is_causal` and with shared keys where it sees that
    nothing is padded or packed, which it does not look for while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 16)
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.end = nn.Linear(16, 17)
        self.dropout = nn.Dropout(0.1)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        rows, length = ids.shape
        x = self.embed(ids)
        if places is None:
            places = torch.arange(length, device=ids.device)[None].expand(rows, -1)
        allowed = _allowed(places, mask)
        q = self.q(x).view(rows, length, 4, 4).transpose(1, 2)
        k, v = (f(x).view(rows, length, 2, 4).transpose(1, 2) for f in (self.k, self.v))
        if allowed is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = (t.repeat_interleave(2, 1, output_size=4) for t in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        logits = self.end(self.dropout(y.transpose(1, 2).flatten(2)))
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def _allowed(places: Tensor, mask: Tensor | None) -> Tensor | None:
    """None where that is all that is not later."""
    packed = (torch.diff(places, prepend=places[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    traced = torch.compiler.is_compiling()
    is_one = not traced and bool((packed[:, -1] == 0).all())
    if is_one and (mask is None or bool(mask.bool().all())):
        return None
    length = places.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    allowed = earlier & (packed[:, None, :, None] == packed[:, None, None, :])
    return allowed if mask is None else allowed & mask.bool()[:, None, None, :]


def compiled(model: nn.Module, *args: Tensor, **options: Any) -> Any:
    return remat_compile.compile(model, args, activation_budget="100%", planner="dtr", **options)


def _model() -> Attention:
    torch.manual_seed(0)
    return Attention()


def _trains_as_eager(ours: nn.Module, eager: nn.Module, *args: Tensor) -> None:
    twin = copy.deepcopy(eager)
    twin.load_state_dict(ours.state_dict())
    assert_bit_equal(train_steps(ours, args, {}), train_steps(twin, args, {}))


def test_what_hangs_on_sizes_alone_is_captured_as_eager_goes() -> None:
    model = _model()
    eager = copy.deepcopy(model)
    ours = compiled(model, IDS)
    calls = [c.call.op for c in ours.planned_step.program.graph.cnodes]
    assert not any("repeat" in op or "tril" in op or "cumsum" in op for op in calls)
    _trains_as_eager(ours, eager, IDS)


@pytest.mark.parametrize(
    ("first", "then"), [(FULL, PADDED), (PADDED, FULL)], ids=["full", "padded"]
)
def test_a_mask_that_sends_the_forward_another_way_is_refused(first: Tensor, then: Tensor) -> None:
    model = _model()
    eager = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="FB0524"):
        ours = compiled(model, IDS, first)
    _trains_as_eager(ours, eager, IDS, first)
    with pytest.raises(FBError, match=r"FB0910.*value of its inputs.*test_calls_by_numbers"):
        ours(IDS, then)
    _trains_as_eager(copy.deepcopy(ours), eager, IDS, first)
    with pytest.raises(FBError, match="FB0910"):
        copy.deepcopy(ours)(IDS, then)


def test_so_are_packed_sequences() -> None:
    whole = torch.arange(12)[None].repeat(2, 1)
    packed = torch.cat([torch.arange(5), torch.arange(7)])[None].repeat(2, 1)
    model = _model()
    eager = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="FB0524"):
        ours = compiled(model, IDS, FULL, whole)
    _trains_as_eager(ours, eager, IDS, FULL, whole)
    with pytest.raises(FBError, match="FB0910"):
        ours(IDS, FULL, packed)
    with pytest.warns(UserWarning, match="FB0524"):
        _trains_as_eager(compiled(_model(), IDS, FULL, packed), eager, IDS, FULL, packed)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_way_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    eager = copy.deepcopy(model)
    ours = compiled(model, IDS, FULL, on_new_shape="replan")
    for mask in (PADDED, FULL, PADDED.flip(0), FULL):
        _trains_as_eager(ours, eager, IDS, mask)
    again = ours.planned_step.on_change
    assert len(again.known) == 1
    _trains_as_eager(ours, eager, IDS[:, :9].contiguous(), PADDED[:, :9].contiguous())
    _trains_as_eager(ours, eager, IDS[:, :9].contiguous(), FULL[:, :9].contiguous())
    assert len(again.known) == 3


def test_or_runs_in_eager() -> None:
    model = _model()
    eager = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="FB0524"):
        ours = compiled(model, IDS, FULL, on_new_shape="eager")
    with pytest.warns(UserWarning, match="FB0913"):
        _trains_as_eager(ours, eager, IDS, PADDED)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_numbers_are_read_outside_of_autocast() -> None:
    model = _model()
    with torch.autocast("cpu", torch.bfloat16):
        ours = compiled(model, IDS, FULL)
        assert ours(IDS, FULL).isfinite()
        with pytest.raises(FBError, match="FB0910"):
            ours(IDS, PADDED)


# -- caches of text --------------------------------------------------------------------


class Config:
    use_cache: Any = True


class Caching(nn.Module):
    """With a cache computes something that differs in bits, as a layout may."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.config = Config()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        return (y * (1 / 3) if self.config.use_cache else y / 3).tanh()


def test_caches_are_made_where_bits_hang_on_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(64, 8), Caching()
    eager = copy.deepcopy(model)
    ours = compiled(model, x)
    _trains_as_eager(ours, eager, x)
    assert any(c.call.op == "aten.mul.Tensor" for c in ours.planned_step.program.graph.cnodes)
    plan = remat_compile.plan(model, (x,), activation_budget="100%", planner="dtr")
    plan.save(tmp_path / "plan.fbir")
    bound = remat_compile.load(tmp_path / "plan.fbir").bind(model, (x,))
    _trains_as_eager(bound, eager, x)
    assert model.config.use_cache is True


class Looked(nn.Module):
    """Reads a second number only where the first one lets it: an index, say."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, places: Tensor, table: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and bool((places < 6).all()):
            scale = 1.0 if bool(torch.gather(table, 0, places).any()) else 2.0
            return self.small(x) * scale
        return self.large(x)


@pytest.mark.parametrize("way", ["replan", "eager"])
def test_what_is_read_on_one_way_alone_is_not_computed_on_another(way: str) -> None:
    torch.manual_seed(0)
    model, table = Looked(), torch.zeros(6, dtype=torch.long)
    calls = [(torch.ones(3, 4), torch.tensor(places), table) for places in ([1, 2], [1, 9])]
    ours = compiled(copy.deepcopy(model), *calls[0], on_new_shape=way)
    for call in (*calls, calls[0]):
        _trains_as_eager(ours, model, *call)
    strict = compiled(copy.deepcopy(model), *calls[0])
    with pytest.raises(FBError, match="value of its inputs is False"):
        strict(*calls[1])


PADDING = {"seen": False}


class Noting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and not bool(mask.all()):
            PADDING["seen"] = True
        return self.a(x)


def test_what_a_way_leaves_outside_of_modules_is_put_back() -> None:
    x, mask = torch.ones(3, 4), torch.ones(3, dtype=torch.bool)
    ours = compiled(Noting(), x, mask)
    assert PADDING == {"seen": False}
    with pytest.raises(FBError, match="value of its inputs"):
        ours(x, ~mask)


class OfWays(nn.Module):
    """What it returns hangs on the mask, and is something else again while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        y = self.a(x)
        if not torch.compiler.is_compiling() and not bool(mask.all()):
            return {"y": y, "twice": y * 2, "kind": 7}
        return {"y": y.tanh(), "kind": 3}


@pytest.mark.parametrize("first", [True, False])
def test_a_way_returns_what_it_returns_in_eager(first: bool) -> None:
    torch.manual_seed(0)
    model, x, mask = OfWays(), torch.randn(3, 4), torch.ones(3, dtype=torch.bool)
    ours = compiled(copy.deepcopy(model), x, mask if first else ~mask, on_new_shape="replan")
    for one in (mask, ~mask, mask):
        (mine, own), (theirs, wanted) = _returned(ours, x, one), _returned(model, x, one)
        assert (list(mine), mine["kind"]) == (list(theirs), theirs["kind"])
        assert_same_tensors(own, wanted, "gradient of")


def _returned(model: nn.Module, *args: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a call returns, and the gradients of its sum."""
    made: dict[str, Any] = model(*args)
    ends = [part.sum() for part in made.values() if isinstance(part, Tensor)]
    gradients = torch.autograd.grad(ends, [*model.parameters()])
    return made, dict(zip(dict(model.named_parameters()), gradients, strict=True))


class DrawsInEager(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and bool(mask.all()):
            return self.a(x) * random.random()
        return self.a(x)


def test_what_only_eager_draws_is_seen() -> None:
    with pytest.raises(FBError, match="FB0513"):
        compiled(DrawsInEager(), torch.ones(3, 4), torch.ones(3, dtype=torch.bool))


class MoreInEager(nn.Module):
    """By a number that a plan cannot know."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("flag", torch.ones(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.a(x)
        if not torch.compiler.is_compiling() and bool(self.flag):
            return {"y": y, "twice": y.detach() * 2}
        return {"y": y}


def test_tensors_that_only_eager_returns_are_missed() -> None:
    with pytest.raises(FBError, match=r"FB0512.*tensors at other places"):
        compiled(MoreInEager(), torch.ones(3, 4))
