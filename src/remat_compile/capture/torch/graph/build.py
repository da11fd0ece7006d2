"""One pass over the joint graph: storages, views and computations under their names."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import Tensor, fx, nn

from ....device.devices import get_rng_state
from ....ir.diagnostics import Diagnostic, FBError, fail, listed
from ....ir.expr import Const, add
from ....ir.graph import ACCUMULATE_OP, ANode, ANodeKind, Arg, Call, CNode, Ref, View
from ....operators.aten import atom_of, from_torch_dtype, op_name
from ....operators.overloads import OpOverload
from ....operators.schema import effects_of
from ...lowered import Exported
from ...trace import descriptors as aot
from ...trace.joint import HANDS_GRADIENTS_OVER, Joint
from ..places import BY_REGIONS, CHECKPOINT, place_of
from .accumulate import Accumulations
from .operators import filled, replay_without_effect
from .prepare import is_backward
from .symbols import Symbols

WITHOUT_ONEDNN = (
    "nn.LSTM in float32 runs a kernel that keeps what its backward needs under autograd only: "
    "capture and train inside torch.backends.mkldnn.flags(enabled=False)"
)

WAY_OUT = {
    "FB0507": f"use operators of PyTorch on tensors in that line, or {BY_REGIONS}",
    "FB0511": f"if it is a checkpoint, {CHECKPOINT}; else {BY_REGIONS}",
    "FB0508": "compute a new tensor and return it, or write to a buffer",
}
LONGEST = 48
"""Characters of a name in the graph, the end of the model's own, which stands in the binding."""


class ProgramBuilder:
    """Reads a prepared joint graph once; `assemble` makes the program of what it found."""

    def __init__(self, exported: Exported, joint: Joint):
        self.exported = exported
        self.joint = joint
        self.graph = joint.graph_module.graph
        self.symbols = Symbols(exported.symbol_names)
        self.taken: set[str] = set()
        self.anodes: dict[str, ANode] = {}
        self.views: list[View] = []
        self.forward: list[CNode] = []
        self.backward: list[CNode] = []
        self.node_of: dict[str, fx.Node] = {}
        # Graph node -> the name(s) of its value(s); name -> the aNode that holds it.
        self.name_of: dict[fx.Node, str | tuple[str | None, ...]] = {}
        self.holder: dict[str, str] = {}
        # Storage -> the first aNode in it. Parameters of one memory are several.
        self.storages: dict[int, str] = {}
        self._tied = _named_tensors(exported.traced)
        self._known: dict[int, str] = {}
        self.forward_of_seq: dict[int, list[str]] = {}
        self.placeholders: list[str | None] = []
        self.constants: dict[str, Tensor] = {}
        self.param_names: dict[str, list[str]] = {}
        self.buffer_names: dict[str, list[str]] = {}
        self.argument_names: list[str] = []
        self.argument_of_plain: dict[int, int] = {}
        self.tangents: dict[Any, str] = {}
        self._refused: dict[tuple[str, str], dict[str, None]] = {}
        self._unknown: set[fx.Node] = set()
        self.accumulations = Accumulations(self.graph)

    def read(self) -> None:
        """Raises FBError with everything that is outside the language."""
        for node in self.graph.nodes:
            match node.op:
                case "placeholder":
                    self._placeholder(node)
                case "get_attr":
                    self._constant(node)
                case "call_function":
                    self._call_function(node)
                case _:
                    pass
        if self.problems:
            raise FBError(self.problems)

    # -- leaves ---------------------------------------------------------------------

    def _placeholder(self, node: fx.Node) -> None:
        desc, value = node.meta["desc"], node.meta.get("val")
        if not isinstance(value, Tensor):  # baked in at capture
            self.placeholders.append(None)
            return
        match desc:
            case aot.ParamAOTInput(target=target):
                self._held(node, target, "param", self.param_names)
            case aot.BufferAOTInput(target=target):
                self._held(node, target, "buffer", self.buffer_names)
            case aot.PlainAOTInput(idx=index):
                name = self._declare(node, value, self._fresh(f"arg{index}"), "input")
                self.argument_of_plain[index] = len(self.argument_names)
                self.argument_names.append(name)
                self.placeholders.append(name)
                self.name_of[node] = name
            case aot.TangentAOTInput(output=output):
                base = getattr(output, "idx", len(self.tangents))
                # The gradient of a scalar is the root that `loss.backward()` makes and
                # holds until it returns: no plan can free it.
                kind: ANodeKind = "tangent" if value.dim() and HANDS_GRADIENTS_OVER else "output"
                name = self._declare(node, value, self._fresh(f"tangent{base}"), kind)
                self.tangents[output] = name
                self.name_of[node] = name
            case _:
                self.refuse("FB0507", f"the model has an input of kind {desc}", node)

    def _held(
        self, node: fx.Node, target: str, kind: ANodeKind, names: dict[str, list[str]]
    ) -> None:
        known = self._known.get(self._tied[target])
        if known is None:
            known = self._declare(node, node.meta["val"], self._fresh(target), kind)
            self._known[self._tied[target]] = known
            names[known] = [target]
        else:  # a second name of the same tensor
            (self.param_names if known in self.param_names else self.buffer_names)[known].append(
                target
            )
        self.name_of[node] = known
        self.placeholders.append(known)

    def _constant(self, node: fx.Node) -> None:
        tensor = getattr(self.joint.graph_module, str(node.target))
        if not isinstance(tensor, Tensor):
            kind = f"{type(tensor).__module__.partition('.')[0]}.{type(tensor).__name__}"
            message = f"the forward draws from a {kind} of its own; only PyTorch's is in a plan"
            self.refuse("FB0507", message, next(iter(node.users), None))
            self._unknown.add(node)
            return
        name = self._fresh(str(node.target))
        value = node.meta.get("val", tensor)
        if any(tensor is p for p in self.exported.original.parameters()):
            message = "a backward of the model's own calls a module, as its forward did"
            self.refuse("FB0511", message, next(iter(node.users), None))
        elif tensor.requires_grad:
            message = (
                f"the forward reads a tensor {list(tensor.shape)} with a gradient that is no "
                "parameter and no argument: make it one of these"
            )
            self.refuse("FB0507", message, next(iter(node.users), None))
        self._declare(node, value, name, "const")
        node.meta.setdefault("val", value)
        self.constants[name] = tensor
        self.buffer_names[name] = [str(node.target)]
        self.name_of[node] = name

    # -- computations ---------------------------------------------------------------

    def _call_function(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        reads_unknown = not self._unknown.isdisjoint(node.all_input_nodes)
        if reads_unknown:
            self._unknown.add(node)
        if node.target is operator.getitem:
            parent, index = node.args
            names = self.name_of.get(parent)  # type: ignore[arg-type]
            name = names[index] if isinstance(names, tuple) else None  # type: ignore[index]
            if name is not None:
                self.name_of[node] = name
                self.node_of.setdefault(name, node)
            return
        if isinstance(value, int | torch.SymInt | torch.SymBool):
            return  # folded into the expressions that use it, or only checked
        if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable:
            self.refuse("FB0507", f"operator {node.target} is outside the language", node)
            return
        if reads_unknown:
            return  # what it reads was refused
        if node.target is torch.ops.aten.mkldnn_rnn_layer.default:
            self.refuse("FB0520", WITHOUT_ONEDNN, node)
            return
        if not node.target._schema.returns:
            return  # a check of the exporter; nothing is computed
        tensors = list(value) if isinstance(value, list | tuple) else [value]
        if isinstance(value, list | tuple):  # numbers among them are folded into their readers
            tensors = [None if isinstance(t, int | torch.SymInt) else t for t in tensors]
        if not all(isinstance(t, Tensor) or t is None for t in tensors):
            self.refuse("FB0507", f"operator {node.target} returns {type(value).__name__}", node)
            return
        try:
            call = Call(
                op_name(node.target),
                tuple(self._arg(a) for a in node.args),
                tuple((key, self._arg(a)) for key, a in node.kwargs.items()),
            )
        except FBError as error:
            for d in error.diagnostics:
                self.refuse(d.code, d.message, node)
            return
        if effects_of(node.target).is_unwritten:
            assert isinstance(value, Tensor)
            first = node.args[0] if node.args else None
            zeros = filled(call, value, first.meta["val"] if isinstance(first, fx.Node) else None)
            if zeros is None:
                message = f"operator {node.target} leaves its result unwritten"
                self.refuse("FB0507", message, node)
                return
            call = zeros
        held = [t is not None and t.untyped_storage()._cdata in self.storages for t in tensors]
        if all(held):
            self._view(node, call, tensors)
        elif any(held):
            self.refuse("FB0507", f"{node.target} returns some results that are views", node)
        else:
            self._compute(node, call, tensors)

    def _view(self, node: fx.Node, call: Call, tensors: list[Any]) -> None:
        many = isinstance(node.meta["val"], list | tuple)
        names: list[str | None] = []
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        for index, tensor in enumerate(tensors):
            if many and index not in used:
                names.append(None)
                continue
            name = self._fresh(f"{node.name}_{index}" if many else node.name)
            base = self.holder[name] = self._base(node, tensor)
            self.views.append(View(name, base, call, index if many else None))
            if not many:
                self.node_of[name] = node
            names.append(name)
        self.name_of[node] = tuple(names) if many else names[0]  # type: ignore[assignment]

    def _base(self, node: fx.Node, tensor: Tensor) -> str:
        """The aNode that a view lies in: that of an operand in its storage."""
        storage = tensor.untyped_storage()._cdata
        for operand in node.all_input_nodes:
            value, name = operand.meta.get("val"), self.single(operand)
            if name and isinstance(value, Tensor) and value.untyped_storage()._cdata == storage:
                return self.holder[name]
        return self.storages[storage]

    def _compute(self, node: fx.Node, call: Call, tensors: list[Any]) -> None:
        backward = is_backward(node)
        many = isinstance(node.meta["val"], list | tuple)
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        writes: list[str | None] = []
        unused = []
        for index, tensor in enumerate(tensors):
            if tensor is None:
                writes.append(None)
            elif many and index not in used:
                writes.append(None)
                unused.append(self.symbols.of(tensor.untyped_storage().nbytes()))
            else:
                name = self._fresh(f"{node.name}_{index}" if many else node.name)
                self._declare(
                    node if not many else None, tensor, name, "grad" if backward else "act"
                )
                writes.append(name)
        self.name_of[node] = tuple(writes) if many else writes[0]  # type: ignore[assignment]
        if self.accumulations.is_accumulation(node):
            first, second = self.accumulations.operands(node)
            call = Call(ACCUMULATE_OP, (self._arg(first), self._arg(second)))
        label = f"B{len(self.backward) + 1}" if backward else f"F{len(self.forward) + 1}"
        token = None
        assert isinstance(node.target, OpOverload)
        if effects_of(node.target).draws(node.args, node.kwargs):
            token = self._fresh(f"rng_{label}")
            # Of CUDA, which a model may be captured for where there is none, it is known.
            device = self.exported.device
            nbytes = Const(16 if device.type == "cuda" else get_rng_state(device).numel())
            self.anodes[token] = ANode(token, "rng", "u8", (nbytes,), nbytes)
        cnode = CNode(
            name=label,
            phase="bwd" if backward else "fwd",
            writes=tuple(writes),
            call=call,
            replay=replay_without_effect(node.target, call, tuple(writes)),
            token=token,
            of=self._forward_of(node) if backward else (),
            workspace=add(Const(0), *unused),
            loc=place_of(node),
        )
        (self.backward if backward else self.forward).append(cnode)
        differentiable = any(t is not None and t.is_floating_point() for t in tensors)
        if not backward and differentiable and "seq_nr" in node.meta:
            self.forward_of_seq.setdefault(node.meta["seq_nr"], []).append(label)

    def _forward_of(self, node: fx.Node) -> tuple[str, ...]:
        # Sums of gradients carry the number of the last forward node: not theirs.
        if node.meta.get("is_gradient_acc") or "Gradient addition" in (
            node.meta.get("stack_trace") or ""
        ):
            return ()
        return tuple(self.forward_of_seq.get(node.meta.get("seq_nr", -1), ()))

    def _arg(self, value: Any) -> Arg:
        if isinstance(value, fx.Node):
            inner = value.meta.get("val")
            if isinstance(inner, int | torch.SymInt) and not isinstance(inner, bool):
                return self._integer(inner)
            name = self.name_of.get(value)
            if isinstance(name, str):
                return Ref(name)
            if inner is None and value.target is operator.getitem:
                return None  # a tensor that an operator may give and did not
            fail("FB0507", f"{value.name} ({value.target}) cannot be an argument")
        if value is None or isinstance(value, bool | float | str):
            return value
        if isinstance(value, int | torch.SymInt):
            return self._integer(value)
        if isinstance(value, list | tuple):
            return tuple(self._arg(part) for part in value)
        atom = atom_of(value)
        if atom is None:
            fail("FB0507", f"an argument of type {type(value).__name__} has no text form")
        return atom

    def _integer(self, value: int | torch.SymInt) -> Arg:
        expression = self.symbols.of(value)
        return expression.value if isinstance(expression, Const) else expression

    # -- small things ---------------------------------------------------------------

    def _declare(self, node: fx.Node | None, value: Tensor, name: str, kind: ANodeKind) -> str:
        storage = value.untyped_storage()
        self.anodes[name] = ANode(
            name,
            kind,
            from_torch_dtype(value.dtype),
            tuple(self.symbols.of(size) for size in value.shape),
            # Of memory that several share, each but the first counts for itself.
            self.symbols.of(value.nbytes if storage._cdata in self.storages else storage.nbytes()),
        )
        self.holder[name] = name
        self.storages.setdefault(storage._cdata, name)
        if node is not None:
            self.node_of[name] = node
        return name

    def single(self, node: fx.Node) -> str | None:
        """The name of a value that is one tensor."""
        name = self.name_of.get(node)
        return name if isinstance(name, str) else None

    def _fresh(self, wanted: str) -> str:
        name = base = re.sub(r"\W", "_", wanted)[-LONGEST:].lstrip("_") or "v"
        if name[0].isdigit():
            name = base = f"v{name}"
        count = 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def refuse(self, code: str, message: str, node: fx.Node | None) -> None:
        places = self._refused.setdefault((code, message), {})
        if node is not None:
            self._unknown.add(node)
            places[str(place_of(node) or "")] = None

    @property
    def problems(self) -> list[Diagnostic]:
        """Return the refusals, each once with the places where it stands."""
        diagnostics = []
        for (code, message), places in self._refused.items():
            shown = [place for place in places if place]
            at = f" ({listed(shown, 3)})" if shown else ""
            diagnostics.append(Diagnostic(code, f"{message}{at}", hint=WAY_OUT.get(code)))
        return diagnostics


def _named_tensors(module: nn.Module) -> dict[str, int]:
    """The identity of each parameter and buffer by path: names of one tensor are tied."""
    named = (module.named_parameters, module.named_buffers)
    return {path: id(t) for of in named for path, t in of(remove_duplicate=False)}
