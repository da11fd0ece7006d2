"""A graph that `torch.compile` captured (a region of a model) as a module that can be planned.

TorchDynamo hands over what it could capture between two places where the model's Python must
run: a graph whose inputs are the parameters and buffers that it reads, the tensors that come from
outside, and numbers. `region_of` makes a module of it for one call's numbers and shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten

from ...device.fake_tensors import FakeTensorMode
from ...ir.diagnostics import fail
from ..lowered import Exported
from ..trace.autocast import Autocast
from ..trace.module import unalias

_KEY = re.compile(r"\['?(\w+)'?\]|\.(\w+)")
_OF_MODULES = ("_modules", "_parameters", "_buffers")


class RegionModule(nn.Module):
    """Runs a graph of tensors; its parameters and buffers are the graph's, by their names there.

    What is left of the inputs are its arguments. It returns the tensors among the graph's results.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        buffers: frozenset[int],
        returned: Sequence[int],
    ):
        super().__init__()
        self.graph = graph
        self._returned = tuple(returned)
        self._slots: list[tuple[dict[str, Any], str] | None] = []
        for place, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
            held: dict[str, Any] | None = None
            if isinstance(tensor, nn.Parameter):
                held = self._parameters
            elif place in buffers:
                held = self._buffers
            if held is not None:
                held[name] = tensor
            self._slots.append(None if held is None else (held, name))

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        rest = iter(args)
        values = [next(rest) if slot is None else slot[0][slot[1]] for slot in self._slots]
        # Node by node, so that what is traced carries the lines of the model.
        with fx_traceback.preserve_node_meta():
            made = fx.Interpreter(self.graph).run(*values)
        return tuple(made[place] for place in self._returned)


@dataclass(frozen=True, eq=False)
class RegionCall:
    """One kind of call of a captured graph.

    `taken` are the inputs that are tensors, by place; `constants` the results, with None where a
    tensor stands: the places `returned`.
    """

    exported: Exported
    taken: tuple[int, ...]
    constants: tuple[Any, ...]
    returned: tuple[int, ...]

    def order(self, targets: Iterable[str | int]) -> tuple[int, ...]:
        """Places among the graph's inputs of parameters and buffers (by name) and arguments."""
        region = self.exported.original
        assert isinstance(region, RegionModule)
        named = {slot[1]: at for at, slot in zip(self.taken, region._slots, strict=True) if slot}
        given = [at for at, slot in zip(self.taken, region._slots, strict=True) if slot is None]
        return tuple(given[t] if isinstance(t, int) else named[t] for t in targets)

    def owned(self) -> tuple[int, ...]:
        """Places among the graph's inputs of parameters and buffers."""
        region = self.exported.original
        assert isinstance(region, RegionModule)
        return tuple(at for at, slot in zip(self.taken, region._slots, strict=True) if slot)

    def let_go(self) -> None:
        """Holds no tensor of the call any longer."""
        region = self.exported.original
        region._parameters.clear()
        region._buffers.clear()
        for field in ("args", "flat_args", "trace_args"):
            object.__setattr__(self.exported, field, ())


def sources_of(graph: fx.GraphModule) -> tuple[str, ...]:
    """Where each input comes from, as an expression: `L['self']._modules['a']._buffers['mean']`.

    TorchDynamo forgets it when it has compiled the graph.
    """
    arguments = [n.meta.get("grapharg") for n in graph.graph.find_nodes(op="placeholder")]
    return tuple("" if argument is None else str(argument.source.name) for argument in arguments)


def region_of(
    graph: fx.GraphModule, sources: Sequence[str], inputs: Sequence[Any]
) -> RegionCall | None:
    """The captured `graph` at the `inputs` of one call; None where no result has a gradient.

    FBError FB0521 where it does not run on fake tensors.
    """
    taken = tuple(at for at, value in enumerate(inputs) if isinstance(value, Tensor))
    tensors = [inputs[at] for at in taken]
    names = _names([sources[at] for at in taken])
    fixed = _with_numbers(graph, inputs)
    made, written = _on_fakes(fixed, tensors)
    if not any(isinstance(one, Tensor) and one.requires_grad for one in made):
        return None
    # Kernels of batch normalisation write to buffers without saying so.
    buffers = {at for at, place in enumerate(taken) if "._buffers[" in sources[place]}
    held = frozenset(at for at in written | buffers if not tensors[at].requires_grad)
    is_tensor = [isinstance(one, Tensor) for one in made]
    returned = tuple(place for place, yes in enumerate(is_tensor) if yes)
    region = RegionModule(fixed, names, tensors, held, returned)
    outside = tuple(
        t.detach().requires_grad_(t.requires_grad)
        for t, slot in zip(tensors, region._slots, strict=True)
        if slot is None
    )
    args, _ = unalias(outside, {})
    device = tensors[0].device
    exported = Exported(
        original=region,
        module=region,
        args=args,
        kwargs={},
        flat_args=args,
        in_spec=tree_flatten((args, {}))[1],
        trace_args=args,
        trace_kwargs={},
        symbol_names={},
        symbol_ranges={},
        device=device,
        autocast=Autocast.now(device.type),
        is_live=True,
        has_places=True,
    )
    constants = tuple(None if isinstance(one, Tensor) else one for one in made)
    return RegionCall(exported, taken, constants, returned)


def _names(sources: Sequence[str]) -> list[str]:
    """Return names of the inputs, as short as they are told apart: `layers_0_weight`, `x`."""
    names: dict[str, None] = {}
    for source in sources:
        keys = [a or b for a, b in _KEY.findall(source)]
        inner = [key for key in keys[1:] if key not in _OF_MODULES] or keys
        name = base = "_".join(inner) or "input"
        count = 1
        while name in names or name == "graph":
            count += 1
            name = f"{base}_{count}"
        names[name] = None
    return list(names)


def _with_numbers(graph: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph with the numbers of one call in it, and tensors as its only inputs."""
    made = fx.Graph()
    known: dict[fx.Node, Any] = {}
    given: dict[fx.Node, Any] = {}
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
        given[node] = value
        if not isinstance(value, Tensor):
            known[node] = value
    for node in graph.graph.nodes:
        if node in known:
            continue
        if _is_number_in_tensor(node) and node.args[0] in given:
            known[node] = given[node.args[0]].item()
            continue
        copy = known[node] = made.node_copy(node, lambda n: known[n])
        stack = copy.meta.get("nn_module_stack")
        if stack:
            copy.meta["nn_module_stack"] = {
                key: (_path(path), kind) for key, (path, kind) in stack.items()
            }
    return fx.GraphModule(graph, made)


def _is_number_in_tensor(node: fx.Node) -> bool:
    """Numbers of Python that may change come as tensors of one element."""
    return node.op == "call_method" and node.target == "item"


def _path(of_dynamo: str) -> str:
    """`layers.0` of `L['self'].layers.0` or `L['self']._modules['layers']._modules['0']`."""
    keys = [a or b for a, b in _KEY.findall(of_dynamo)]
    return ".".join(key for key in keys[1:] if key not in _OF_MODULES)


def _on_fakes(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> tuple[list[Any], frozenset[int]]:
    """Return the results of the graph on fake tensors, and the inputs that it writes to."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = [mode.from_tensor(t) for t in tensors]
            before = [t._version for t in fakes]
            made = list(graph(*fakes))
    except Exception as error:  # whatever an operator's fake kernel raises
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        fail("FB0521", f"it does not run without data: {said}")
    changed = [at for at, t in enumerate(fakes) if t._version != before[at]]
    return made, frozenset(changed)
