"""Lowering: the rules of the design, each on a model that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compile
from helpers.models import FACTORIES, SMALL
from helpers.slow import default_only
from remat_compile import FBError
from remat_compile.capture.torch import Lowered, check_against_eager, export, lower
from remat_compile.capture.torch.graph.build import LONGEST
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.expr import Const, Mul, Sym
from remat_compile.ir.graph import CNode
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.operators import effects


def lowered(module: nn.Module, *args: Any, **options: Any) -> Lowered:
    with lower(export(module, args, **options)) as result:
        return result


def cnodes(result: Lowered, op: str) -> list[CNode]:
    return [c for c in result.program.graph.cnodes if c.call.op == op]


DEFAULT = ("small-mlp", "small-gpt", "small-resnet-loss")


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(FBError) as error:
        yield
    assert code in {d.code for d in error.value.diagnostics}


@pytest.mark.parametrize("name", default_only(FACTORIES, DEFAULT))
def test_every_model_lowers_equal_to_eager_and_round_trips(name: str) -> None:
    module, args, kwargs = FACTORIES[name](torch.float32)
    exported = export(module, args, kwargs)
    with lower(exported) as first:
        program = first.program
    check_against_eager(exported, program, first.values())
    assert parse_program(format_program(program)) == program
    order = frees_after_last_use(program.graph, capture_order(program.graph))
    assert simulate(program, Schedule("p", "store-all", order)).peak_bytes > 0


def test_the_same_model_gives_the_same_text() -> None:
    texts = []
    for _ in range(2):
        module, args, kwargs = SMALL["resnet"](torch.float32)
        with lower(export(module, args, kwargs)) as result:
            texts.append(format_program(result.program))
    assert texts[0] == texts[1]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.emb.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.emb(ids))
        return out


def test_tied_parameters_are_one_anode_with_one_gradient() -> None:
    result = lowered(Tied(), torch.zeros(2, 5, dtype=torch.long))
    tied = [p for p in result.program.binding.params if len(p.names) == 2]
    assert [p.names for p in tied] == [("emb.weight", "head.weight")]
    assert tied[0].grad is not None


def test_a_parameter_without_gradient_is_a_warning_that_names_it() -> None:
    result = lowered(Tied(), torch.zeros(2, 5, dtype=torch.long))
    assert [w.code for w in result.warnings] == ["FB0510"]
    assert "unused.weight" in result.warnings[0].message
    lost = [p for p in result.program.binding.params if p.grad is None]
    assert [p.names[0] for p in lost] == ["unused.weight", "unused.bias"]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn(self.conv(x)).relu()
        return out


def test_batch_norm_has_a_replay_form_and_pending_buffers() -> None:
    result = lowered(Norm(), torch.randn(2, 3, 8))
    (norm,) = [c for c in result.program.graph.cnodes if "batch_norm_legit" in c.call.op]
    assert norm.replay is not None
    reads = result.program.graph.reads(norm, 2)
    buffers = {b.name for b in result.program.binding.buffers}
    assert buffers & set(result.program.graph.reads(norm, 1))
    assert not buffers & set(reads)
    pending = [a.name for a in result.program.graph.anodes if a.kind == "pending"]
    assert len(pending) == 3
    assert set(pending) <= set(result.program.graph.reads(result.program.graph.loss))


def test_batch_norm_backward_reads_no_buffer() -> None:
    graph = lowered(Norm(), torch.randn(2, 3, 8)).program.graph
    for c in graph.in_phase("bwd"):
        assert all(graph.anode[name].kind not in ("buffer", "pending") for name in graph.reads(c))


class Drops(nn.Module):
    def __init__(self, attention: float) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 24)
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.view(2, 5, 2, 4).transpose(1, 2) for p in self.lin(x).split(8, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attention)
        return F.dropout(y, 0.1)


@pytest.mark.parametrize(("p", "tokens"), [(0.0, 1), (0.2, 2)])
def test_attention_has_a_token_only_if_it_drops(p: float, tokens: int) -> None:
    result = lowered(Drops(p), torch.randn(2, 5, 8))
    random = [c for c in result.program.graph.cnodes if c.token is not None]
    assert len(random) >= tokens
    flash = [c for c in random if "scaled_dot_product" in c.call.op]
    assert p > 0 or not flash


class TwoSums(nn.Module):
    """(x + a) + b returns its tangent for both; autograd copies where a plan must too."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4))
        self.b = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.a.sum() + self.a) + self.b


def test_every_gradient_is_whole_and_its_own() -> None:
    exported = export(TwoSums(), (torch.randn(4),))
    with lower(exported) as result:
        pass
    graph = result.program.graph
    grads = [graph.storage[p.grad] for p in result.program.binding.params if p.grad]
    assert len(set(grads)) == 2
    assert {graph.anode[g].kind for g in grads} == {"param_grad"}
    assert cnodes(result, "aten.clone.default")
    check_against_eager(exported, result.program, result.values())


def test_accumulations_end_their_first_operand_and_others_read_it_before() -> None:
    module, args, kwargs = SMALL["llama"](torch.float32)
    with lower(export(module, args, kwargs)) as result:
        graph = result.program.graph
    sums = [c for c in graph.cnodes if c.is_accumulate]
    assert sums
    position = {c.name: i for i, c in enumerate(graph.cnodes)}
    for c in sums:
        ended = graph.reads(c)[0]
        assert max(position[r.name] for r in graph.readers[ended]) == position[c.name]
        assert graph.anode[ended].size == graph.anode[c.results[0]].size


def test_backward_computations_belong_to_forward_ones_but_sums_do_not() -> None:
    graph = lowered(Tied(), torch.zeros(2, 5, dtype=torch.long)).program.graph
    named = {c.name: c for c in graph.cnodes}
    for c in graph.in_phase("bwd"):
        assert all(named[f].phase == "fwd" for f in c.of)
        assert not (c.is_accumulate and c.of)
    assert any(c.of for c in graph.in_phase("bwd"))


def test_every_computation_has_a_place() -> None:
    module, args, kwargs = SMALL["gpt"](torch.float32)
    with lower(export(module, args, kwargs)) as result:
        graph = result.program.graph
    placed = [c for c in graph.cnodes if c.loc is not None]
    assert len(placed) >= 0.9 * len(graph.cnodes)
    assert all(c.loc is not None and "/" not in c.loc.file for c in placed)
    assert any(c.loc is not None and c.loc.module for c in placed)


@contextmanager
def around() -> Iterator[None]:
    yield


class Wrapped(nn.Module):
    """Its computations run under functions of the standard library."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @around()
    def forward(self, x: Tensor) -> Tensor:
        return reduce(lambda y, _: self.linear(y), range(2), x)


def test_places_are_lines_of_the_model_and_no_others() -> None:
    of_torch_alone = lowered(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(2, 4))
    places = {str(c.loc) for c in of_torch_alone.program.graph.in_phase("fwd")}
    assert places == {'"0"', '"1"'}
    wrapped = lowered(Wrapped(), torch.randn(2, 4)).program.graph.in_phase("fwd")
    assert {c.loc.file for c in wrapped if c.loc is not None} == {Path(__file__).name}


class Named(nn.Module):
    """Paths as converters of Keras models make them."""

    def __init__(self) -> None:
        super().__init__()
        start = "StatefulPartitionedCall_model_" * 10
        self.names = [f"{start}block{i}_conv_kernel" for i in range(2)] + [f"{start}conv_kernel"]
        for name in self.names:
            self.register_parameter(name, nn.Parameter(torch.randn(4)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x * p for p in self.parameters()]).sum(0)


def test_long_names_are_short_in_the_graph_and_whole_in_the_binding() -> None:
    program = lowered(Named(), torch.randn(4)).program
    bound = program.binding.params
    assert [p.names[0] for p in bound] == Named().names
    assert all(len(a.name) <= LONGEST + 2 for a in program.graph.anodes)
    assert len({p.name for p in bound}) == 3
    text = format_program(program)
    assert [text.count(name) for name in Named().names] == [1, 1, 1]


def test_dynamic_batch_gives_a_symbol_and_sizes_in_it() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    result = lowered(
        nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)),
        torch.randn(3, 4),
        dynamic_shapes=({0: batch},),
    )
    (symbol,) = result.program.symbols
    assert (symbol.low, symbol.high, symbol.sample) == (2, 64, 3)
    sizes = {a.size for a in result.program.graph.anodes if a.kind in ("act", "phantom")}
    assert Mul((Const(32), Sym(symbol.name))) in sizes


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w * torch.tensor([2.0, 3.0])


def test_tensors_made_from_literals_are_constants() -> None:
    exported = export(Constant(), (torch.randn(2),))
    with lower(exported) as result:
        pass
    assert [a.kind for a in result.program.graph.anodes].count("const") == 1
    check_against_eager(exported, result.program, result.values())


# -- what is refused ----------------------------------------------------------------------


def test_nothing_to_train() -> None:
    with refused("FB0502"):
        export(nn.ReLU(), (torch.randn(2),))


class NumberInData(nn.Module):
    """A tensor's number as a factor: no size hangs on it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x.sum().to(self.dtype).item()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_numbers_that_depend_on_data(dtype: torch.dtype) -> None:
    with refused("FB0501"), lower(export(NumberInData(dtype), (torch.ones(2),))):
        pass


class Halves(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(x.shape[0] // 2, 2, 4))


def test_a_dimension_that_is_worked_out_from_another() -> None:
    """As PyTorch itself proposes for what must be even."""
    twice = 2 * torch.export.Dim("half", min=2, max=8)
    with refused("FB0506"):
        export(Halves(4, 2), (torch.randn(6, 4),), dynamic_shapes=({0: twice},))


def test_a_dynamic_dimension_without_upper_bound() -> None:
    batch = torch.export.Dim("batch")
    with refused("FB0505"):
        export(nn.Linear(4, 2), (torch.randn(3, 4),), dynamic_shapes=({0: batch},))


# -- Memory that nobody wrote is no function of its arguments --------------------------------------


class Depth(nn.Module):
    """Drops whole samples, as stochastic depth does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.empty(x.shape[0], 1, dtype=x.dtype).bernoulli_(0.5)
        like = torch.empty_like(x)
        like[:] = x
        return self.fc(like * kept) * x.new_empty(1).fill_(2.0)


class Turned(nn.Module):
    """Leaves memory unwritten whose strides no operator of zeros makes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.empty_strided((3, 4), (1, 3))
        turned[0] = x[0]
        return self.fc(turned)


def test_zeros_stand_for_what_is_unwritten() -> None:
    plan = remat_compile.plan(Depth(), (torch.ones(3, 4),), costs="roofline", device="cpu")
    used = {call.op for c in plan.graph.cnodes for call in c.call.parts()}
    assert not any(known.is_unwritten for op in used if (known := effects(op)) is not None)
    assert any(c.token is not None for c in plan.graph.cnodes)


def test_what_has_no_zeros_is_refused() -> None:
    with pytest.raises(FBError) as caught:
        remat_compile.plan(Turned(), (torch.ones(3, 4),))
    assert caught.value.diagnostics[0].code == "FB0507"
    assert "leaves its result unwritten" in caught.value.diagnostics[0].message
