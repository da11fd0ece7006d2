"""The builder: one pass over the joint graph, then the binding to the caller."""

from __future__ import annotations

import operator
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch._aot_autograd import descriptors as aot
from torch._ops import OpOverload

from ..._torch.joint import Joint
from ..._torch.lowered import Exported, Lowered
from ..._torch.ops import atom_of, from_torch_dtype, op_name
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.expr import Const, add
from ...ir.graph import (
    ACCUMULATE_OP,
    LOSS_OP,
    ANode,
    ANodeKind,
    Arg,
    Call,
    CNode,
    Graph,
    Ref,
    View,
)
from ...ir.program import (
    Argument,
    Binding,
    BufferBinding,
    Header,
    ParamBinding,
    Program,
    Result,
    Symbol,
    Target,
)
from .accumulate import Accumulations
from .export import argument_paths
from .operators import draws_random_numbers, replay_without_effect
from .places import place_of
from .prepare import is_backward, output_descs, output_nodes
from .symbols import Symbols

__all__ = ["Builder"]


class Builder:
    """Reads a prepared joint graph once; `build` gives the lowered program."""

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
        # Graph node -> the name(s) of its value(s); storage -> the aNode that holds it.
        self.name_of: dict[fx.Node, str | tuple[str | None, ...]] = {}
        self.holder: dict[int, str] = {}
        self.forward_of_seq: dict[int, list[str]] = {}
        self.placeholders: list[str | None] = []
        self.constants: dict[str, Tensor] = {}
        self.param_names: dict[str, list[str]] = {}
        self.buffer_names: dict[str, list[str]] = {}
        self.argument_names: list[str] = []
        self.argument_of_plain: dict[int, int] = {}
        self.tangents: dict[Any, str] = {}
        self.problems: list[Diagnostic] = []
        self.accumulations = Accumulations(self.graph)

    def build(self) -> Lowered:
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
        return self._finish()

    # -- leaves ---------------------------------------------------------------------

    def _placeholder(self, node: fx.Node) -> None:
        desc, value = node.meta["desc"], node.meta["val"]
        if not isinstance(value, Tensor):
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
                kind: ANodeKind = "output" if value.dim() == 0 else "tangent"
                name = self._declare(node, value, self._fresh(f"tangent{base}"), kind)
                self.tangents[output] = name
                self.name_of[node] = name
            case _:
                self._refuse("FB0507", f"the model has an input of kind {desc}", node)

    def _held(
        self, node: fx.Node, target: str, kind: ANodeKind, names: dict[str, list[str]]
    ) -> None:
        value = node.meta["val"]
        known = self.holder.get(value.untyped_storage()._cdata)
        if known is None:
            known = self._declare(node, value, self._fresh(target), kind)
            names[known] = [target]
        else:
            # A tie: a second name of the same storage.
            (self.param_names if known in self.param_names else self.buffer_names)[known].append(
                target
            )
        self.name_of[node] = known
        self.placeholders.append(known)

    def _constant(self, node: fx.Node) -> None:
        tensor = getattr(self.joint.graph_module, str(node.target))
        name = self._fresh(str(node.target))
        value = node.meta.get("val", tensor)
        self._declare(node, value, name, "const")
        node.meta.setdefault("val", value)
        self.constants[name] = tensor
        self.buffer_names[name] = [str(node.target)]
        self.name_of[node] = name

    # -- computations ---------------------------------------------------------------

    def _call_function(self, node: fx.Node) -> None:
        value = node.meta.get("val")
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
            self._refuse("FB0507", f"operator {node.target} is outside the language", node)
            return
        if not node.target._schema.returns:
            return  # a check of the exporter; nothing is computed
        tensors = list(value) if isinstance(value, list | tuple) else [value]
        if not all(isinstance(t, Tensor) or t is None for t in tensors):
            self._refuse("FB0507", f"operator {node.target} returns {type(value).__name__}", node)
            return
        try:
            call = Call(
                op_name(node.target),
                tuple(self._arg(a) for a in node.args),
                tuple((key, self._arg(a)) for key, a in node.kwargs.items()),
            )
        except FBError as error:
            self.problems.extend(error.diagnostics)
            return
        held = [t is not None and t.untyped_storage()._cdata in self.holder for t in tensors]
        if all(held):
            self._view(node, call, tensors)
        elif any(held):
            self._refuse("FB0507", f"{node.target} returns some results that are views", node)
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
            base = self.holder[tensor.untyped_storage()._cdata]
            self.views.append(View(name, base, call, index if many else None))
            if not many:
                self.node_of[name] = node
            names.append(name)
        self.name_of[node] = tuple(names) if many else names[0]  # type: ignore[assignment]

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
        if draws_random_numbers(node):
            token = self._fresh(f"rng_{label}")
            state = torch.get_rng_state() if self.exported.device.type == "cpu" else None
            nbytes = Const(state.numel() if state is not None else 16)
            self.anodes[token] = ANode(token, "rng", "u8", (nbytes,), nbytes)
        assert isinstance(node.target, OpOverload)
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
            raise FBError(
                Diagnostic("FB0507", f"{value.name} ({value.target}) cannot be an argument")
            )
        if value is None or isinstance(value, bool | float | str):
            return value
        if isinstance(value, int | torch.SymInt):
            return self._integer(value)
        if isinstance(value, list | tuple):
            return tuple(self._arg(part) for part in value)
        atom = atom_of(value)
        if atom is None:
            raise FBError(
                Diagnostic("FB0507", f"an argument of type {type(value).__name__} has no text form")
            )
        return atom

    def _integer(self, value: int | torch.SymInt) -> Arg:
        expression = self.symbols.of(value)
        return expression.value if isinstance(expression, Const) else expression

    # -- the end --------------------------------------------------------------------

    def _finish(self) -> Lowered:
        nodes, descs = output_nodes(self.graph), output_descs(self.graph)
        names = [None if n is None else self._single(n) for n in nodes]
        grads: dict[str, str] = {}
        updates: dict[str, str] = {}
        results: list[Result] = []
        input_grads: list[tuple[int, str]] = []
        forward_outputs: list[str] = []
        backward_outputs: list[str | None] = []
        for name, desc in zip(names, descs, strict=True):
            match desc:
                case aot.InputMutationAOTOutput(mutated_input=aot.BufferAOTInput(target=target)):
                    assert name is not None
                    updates[target] = name
                    forward_outputs.append(name)
                case aot.PlainAOTOutput() | aot.IntermediateBaseAOTOutput():
                    if name is None:
                        self._refuse("FB0507", "an output of the model is not a tensor", None)
                        continue
                    results.append(Result(name, self.tangents.get(desc)))
                    forward_outputs.append(name)
                case aot.GradAOTOutput(grad_of=of):
                    backward_outputs.append(name)
                    if name is not None and isinstance(of, aot.ParamAOTInput):
                        grads[of.target] = name
                    elif name is not None and isinstance(of, aot.PlainAOTInput):
                        input_grads.append((self.argument_of_plain[of.idx], name))
                case None:
                    backward_outputs.append(None)
                case _:
                    self._refuse("FB0508", f"the model has an effect of kind {desc}", None)
        if self.problems:
            raise FBError(self.problems)
        binding = self._binding(grads, updates, results, input_grads)
        graph = self._graph(binding)
        program = Program(
            graph=graph,
            binding=binding,
            header=Header(
                device=self.exported.device.type,
                threads=torch.get_num_threads(),
                torch_version=torch.__version__.split("+")[0],
            ),
            symbols=self._symbol_bindings(),
            target=Target(
                name=self.exported.device.type,
                granularity_bytes=1 if self.exported.device.type == "cpu" else 512,
            ),
        )
        return Lowered(
            exported=self.exported,
            joint=self.joint,
            program=program,
            nodes=self.node_of,
            placeholders=tuple(self.placeholders),
            tangents=tuple(self.tangents.values()),
            forward_outputs=tuple(forward_outputs),
            backward_outputs=tuple(backward_outputs),
            constants=self.constants,
            warnings=self._warnings(binding),
        )

    def _binding(
        self,
        grads: dict[str, str],
        updates: dict[str, str],
        results: list[Result],
        input_grads: list[tuple[int, str]],
    ) -> Binding:
        tensors = argument_paths(self.exported.args, self.exported.kwargs)
        params = []
        for name, targets in self.param_names.items():
            found = [grads[t] for t in targets if t in grads]
            params.append(ParamBinding(tuple(targets), name, found[0] if found else None))
        buffers = []
        for name, targets in self.buffer_names.items():
            new = [updates[t] for t in targets if t in updates]
            buffers.append(BufferBinding(tuple(targets), name, new[0] if new else None))
        return Binding(
            arguments=tuple(
                Argument(path, name)
                for path, name in zip(tensors, self.argument_names, strict=True)
            ),
            params=tuple(params),
            buffers=tuple(buffers),
            results=tuple(results),
            input_grads=tuple(input_grads),
        )

    def _graph(self, binding: Binding) -> Graph:
        bases = {v.name: v.base for v in self.views}
        holder = {name: name for name in self.anodes} | bases
        pending = {holder[b.update]: b.update for b in binding.buffers if b.update is not None}
        loss_reads = dict.fromkeys((*(r.name for r in binding.results), *pending.values()))
        loss = CNode(
            name="L",
            phase="loss",
            writes=tuple(self.tangents.values()),
            call=Call(LOSS_OP, tuple(Ref(name) for name in loss_reads)),
        )
        kinds: dict[str, ANodeKind] = dict.fromkeys(pending, "pending")
        kinds.update({holder[p.grad]: "param_grad" for p in binding.params if p.grad is not None})
        ends = [r.name for r in binding.results] + [name for _, name in binding.input_grads]
        kinds.update({holder[name]: "output" for name in ends})
        cnodes = _without_unused((*self.forward, loss, *self.backward), holder, kinds, self.anodes)
        written = {name for c in cnodes for name in (*c.results, *filter(None, (c.token,)))}
        readers: dict[str, set[str]] = {}
        for c in cnodes:
            for name in c.call.refs():
                readers.setdefault(holder[name], set()).add(c.phase)
        anodes = []
        for a in self.anodes.values():
            if a.kind in ("act", "grad"):
                if a.name not in written:
                    continue
                kind = kinds.get(a.name, a.kind)
                if kind == "act" and readers.get(a.name) == {"bwd"}:
                    kind = "phantom"
                anodes.append(replace(a, kind=kind))
            elif a.kind != "rng" or a.name in written:
                anodes.append(a)
        alive = {a.name for a in anodes}
        views = tuple(v for v in self.views if v.base in alive)
        name = re.sub(r"\W", "_", type(self.exported.original).__name__).lower()
        return Graph(name or "model", tuple(anodes), views, cnodes)

    def _symbol_bindings(self) -> tuple[Symbol, ...]:
        found: list[Symbol] = []
        sample = [leaf for leaf in self.exported.flat_args if isinstance(leaf, Tensor)]
        known: set[str] = set()
        for index, name in enumerate(self.argument_names):
            for dim, size in enumerate(self.node_of[name].meta["val"].shape):
                key = str(size)
                if key in known or key not in self.exported.symbol_names:
                    continue
                known.add(key)
                low, high = self.exported.symbol_ranges[key]
                now = int(sample[index].shape[dim])
                found.append(Symbol(self.exported.symbol_names[key], low, high, now, index, dim))
        return tuple(found)

    def _warnings(self, binding: Binding) -> tuple[Diagnostic, ...]:
        lost = [
            name
            for p in binding.params
            for name in p.names[:1]
            if p.grad is None and self.exported.module.get_parameter(name).requires_grad
        ]
        if not lost:
            return ()
        return (
            Diagnostic(
                "FB0510",
                f"no gradient reaches {', '.join(lost)}; their .grad stays None, as in eager",
                hint="remove them, or use them in the forward",
            ),
        )

    # -- small things ---------------------------------------------------------------

    def _declare(self, node: fx.Node | None, value: Tensor, name: str, kind: ANodeKind) -> str:
        storage = value.untyped_storage()
        self.anodes[name] = ANode(
            name,
            kind,
            from_torch_dtype(value.dtype),
            tuple(self.symbols.of(size) for size in value.shape),
            self.symbols.of(storage.nbytes()),
        )
        self.holder[storage._cdata] = name
        if node is not None:
            self.node_of[name] = node
        return name

    def _single(self, node: fx.Node) -> str | None:
        name = self.name_of.get(node)
        return name if isinstance(name, str) else None

    def _fresh(self, wanted: str) -> str:
        name = base = re.sub(r"\W", "_", wanted).lstrip("_") or "v"
        if name[0].isdigit():
            name = base = f"v{name}"
        count = 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def _refuse(self, code: str, message: str, node: fx.Node | None) -> None:
        place = place_of(node) if node is not None else None
        self.problems.append(Diagnostic(code, f"{message} ({place})" if place else message))


def _without_unused(
    cnodes: tuple[CNode, ...],
    holder: dict[str, str],
    kinds: dict[str, ANodeKind],
    anodes: dict[str, ANode],
) -> tuple[CNode, ...]:
    """Drops computations nobody needs, and turns unread results into workspace.

    Random operators stay: they advance the generator.
    """
    needed = set(kinds)
    kept: list[CNode] = []
    for c in reversed(cnodes):
        wanted = [name for name in c.results if name in needed]
        if not wanted and not c.is_loss and c.token is None:
            continue
        if not c.is_loss:
            unread = [name for name in c.results if name not in needed]
            c = replace(
                c,
                writes=tuple(name if name in needed else None for name in c.writes),
                workspace=add(c.workspace, *(anodes[name].size for name in unread)),
            )
            if c.replay is not None:
                c = replace(
                    c,
                    replay=replace(
                        c.replay,
                        writes=tuple(n if n in needed else None for n in c.replay.writes),
                    ),
                )
        kept.append(c)
        needed.update(holder[name] for name in c.call.refs())
    return tuple(reversed(kept))
