"""Assembly of a program: kinds of storages, the loss, the binding to the caller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import SymInt, Tensor, fx, nn

from ...device.strides import is_dense, outermost_first
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.expr import add
from ...ir.graph import LOSS_OP, ANode, ANodeKind, Call, CNode, Graph, Ref
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
    TensorLayout,
)
from ..lowered import Lowered
from ..trace import descriptors as aot
from ..trace.branches import warnings_of_reads, warnings_of_way
from .export import argument_paths
from .graph.build import ProgramBuilder
from .graph.operators import is_compared
from .graph.prepare import output_descs, output_nodes


def assemble(read: ProgramBuilder) -> Lowered:
    """The lowered program of a joint graph that was read. Raises FBError FB0507, FB0508."""
    return _ProgramAssembly(read).lowered()


class _ProgramAssembly:
    def __init__(self, read: ProgramBuilder):
        self.read = read

    def lowered(self) -> Lowered:
        nodes, descs = output_nodes(self.read.graph), output_descs(self.read.graph)
        names = [self._name(n) for n in nodes]
        grads: dict[str, str] = {}
        updates: dict[str, str] = {}
        results: list[Result] = []
        input_grads: list[tuple[int, str]] = []
        forward_outputs: list[str | None] = []
        backward_outputs: list[str | None] = []
        for name, node, desc in zip(names, nodes, descs, strict=True):
            match desc:
                case aot.InputMutationAOTOutput(mutated_input=aot.BufferAOTInput(target=target)):
                    assert name is not None
                    updates[target] = name
                    forward_outputs.append(name)
                case aot.PlainAOTOutput() | aot.IntermediateBaseAOTOutput():
                    forward_outputs.append(name)
                    if name is not None:  # None stands for None in the model's result
                        results.append(Result(name, self.read.tangents.get(desc)))
                case aot.GradAOTOutput(grad_of=of):
                    backward_outputs.append(name)
                    if name is not None and isinstance(of, aot.ParamAOTInput):
                        grads[of.target] = name
                    elif name is not None and isinstance(of, aot.PlainAOTInput):
                        input_grads.append((self.read.argument_of_plain[of.idx], name))
                case None:
                    backward_outputs.append(None)
                case _:
                    self.read.refuse("FB0508", self._effect(desc), node)
        if self.read.problems:
            raise FBError(self.read.problems)
        binding = self._binding(grads, updates, results, input_grads)
        graph = self._graph(binding)
        program = Program(
            graph=graph,
            binding=binding,
            header=Header(
                device=self.read.exported.device.type,
                threads=torch.get_num_threads(),
                torch_version=torch.__version__.split("+")[0],
                # `check_against_eager` does it before a plan of this graph is handed out.
                replays="compared" if any(map(is_compared, graph.cnodes)) else "",
                layouts=_layouts_of(binding, self.read.node_of),
            ),
            symbols=self._symbol_bindings(),
            target=Target(
                name=self.read.exported.device.type,
                granularity_bytes=1 if self.read.exported.device.type == "cpu" else 512,
            ),
        )
        return Lowered(
            exported=self.read.exported,
            joint=self.read.joint,
            program=program,
            nodes=self.read.node_of,
            placeholders=tuple(self.read.placeholders),
            tangents=tuple(self.read.tangents.values()),
            forward_outputs=tuple(forward_outputs),
            backward_outputs=tuple(backward_outputs),
            constants=self.read.constants,
            warnings=(
                *_lost_gradients(binding, self.read.exported.original),
                *warnings_of_reads(self.read.joint.reads),
                *warnings_of_way(compiling=self.read.joint.compiling),
            ),
            reads=self.read.joint.reads,
        )

    def _effect(self, desc: Any) -> str:
        """Return the effect of a forward that no plan can have."""
        exported = self.read.exported
        match getattr(desc, "mutated_input", None):
            case aot.ParamAOTInput(target=target):
                return f"the forward writes to parameter {target}"
            case aot.PlainAOTInput(idx=index):
                paths = argument_paths(exported.args, exported.kwargs)
                return f"the forward writes to {paths[self.read.argument_of_plain[index]]}"
            case _:
                return f"the forward has an effect that no plan repeats ({type(desc).__name__})"

    def _name(self, node: object) -> str | None:
        """The name of a flat result of the joint graph. FB0507 for one that is no tensor."""
        name = self.read.single(node) if isinstance(node, fx.Node) else None
        if name is None and node is not None:
            self.read.refuse("FB0507", f"an output of the model is no tensor but {node!r}", None)
        return name

    def _binding(
        self,
        grads: dict[str, str],
        updates: dict[str, str],
        results: list[Result],
        input_grads: list[tuple[int, str]],
    ) -> Binding:
        tensors = argument_paths(self.read.exported.args, self.read.exported.kwargs)
        params = []
        for name, targets in self.read.param_names.items():
            gradients = [grads[t] for t in targets if t in grads]
            params.append(ParamBinding(tuple(targets), name, gradients[0] if gradients else None))
        buffers = []
        for name, targets in self.read.buffer_names.items():
            new = [updates[t] for t in targets if t in updates]
            buffers.append(BufferBinding(tuple(targets), name, new[0] if new else None))
        return Binding(
            arguments=tuple(
                Argument(path, name)
                for path, name in zip(tensors, self.read.argument_names, strict=True)
            ),
            params=tuple(params),
            buffers=tuple(buffers),
            results=tuple(results),
            input_grads=tuple(input_grads),
        )

    def _graph(self, binding: Binding) -> Graph:
        bases = {v.name: v.base for v in self.read.views}
        holder = {name: name for name in self.read.anodes} | bases
        pending = {holder[b.update]: b.update for b in binding.buffers if b.update is not None}
        loss_reads = dict.fromkeys((*(r.name for r in binding.results), *pending.values()))
        loss = CNode(
            name="L",
            phase="loss",
            writes=tuple(self.read.tangents.values()),
            call=Call(LOSS_OP, tuple(Ref(name) for name in loss_reads)),
        )
        kinds: dict[str, ANodeKind] = dict.fromkeys(pending, "pending")
        kinds.update({holder[p.grad]: "param_grad" for p in binding.params if p.grad is not None})
        ends = [r.name for r in binding.results] + [name for _, name in binding.input_grads]
        kinds.update({holder[name]: "output" for name in ends})
        cnodes = _without_unused(
            (*self.read.forward, loss, *self.read.backward), holder, kinds, self.read.anodes
        )
        written = {name for c in cnodes for name in (*c.results, *filter(None, (c.token,)))}
        readers: dict[str, set[str]] = {}
        for c in cnodes:
            for name in c.call.refs():
                readers.setdefault(holder[name], set()).add(c.phase)
        anodes = []
        for a in self.read.anodes.values():
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
        views = tuple(v for v in self.read.views if v.base in alive)
        name = re.sub(r"\W", "_", type(self.read.exported.original).__name__).lower()
        return Graph(name or "model", tuple(anodes), views, cnodes)

    def _symbol_bindings(self) -> tuple[Symbol, ...]:
        symbols: list[Symbol] = []
        sample = [leaf for leaf in self.read.exported.flat_args if isinstance(leaf, Tensor)]
        known: set[str] = set()
        for index, name in enumerate(self.read.argument_names):
            for dim, size in enumerate(self.read.node_of[name].meta["val"].shape):
                key = str(size)
                if key in known or key not in self.read.exported.symbol_names:
                    continue
                known.add(key)
                low, high = self.read.exported.symbol_ranges[key]
                now = int(sample[index].shape[dim])
                symbols.append(
                    Symbol(self.read.exported.symbol_names[key], low, high, now, index, dim)
                )
        return tuple(symbols)


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


def _lost_gradients(binding: Binding, model: nn.Module) -> tuple[Diagnostic, ...]:
    """FB0510 for trainable parameters without a gradient. FBError FB0515 where none has one."""
    lost = [
        name
        for p in binding.params
        for name in p.names[:1]
        if p.grad is None and model.get_parameter(name).requires_grad
    ]
    if not lost:
        return ()
    if all(p.grad is None for p in binding.params):
        message = f"no gradient reaches any parameter of {type(model).__name__}"
        hint = "see that what it returns depends on its parameters, outside of torch.no_grad"
        raise FBError(Diagnostic("FB0515", message, hint=hint))
    return (
        Diagnostic(
            "FB0510",
            f"no gradient reaches {', '.join(lost)}; their .grad stays None, as in eager",
            hint="remove them, or use them in the forward",
        ),
    )


def _layouts_of(binding: Binding, nodes: Mapping[str, fx.Node]) -> tuple[TensorLayout, ...]:
    """Return the arguments, parameters and buffers that are not contiguous, in this order."""
    names = [a.name for a in binding.arguments]
    names += [p.name for p in binding.params] + [b.name for b in binding.buffers]
    values = {name: nodes[name].meta.get("val") for name in names if name in nodes}
    layouts = (
        layout_of(name, value)
        for name, value in values.items()
        if isinstance(value, Tensor) and value.layout is torch.strided
    )
    return tuple(layout for layout in layouts if layout is not None)


def layout_of(name: str, tensor: Tensor) -> TensorLayout | None:
    """None for a tensor that is contiguous; dimensions of one element have no say in that."""
    sizes, strides = [*map(_sampled, tensor.shape)], [*map(_sampled, tensor.stride())]
    order = outermost_first(strides)
    if 0 in sizes or is_dense(sizes, strides, range(len(sizes))):
        return None
    form: Literal["order", "strides"] = "order" if is_dense(sizes, strides, order) else "strides"
    return TensorLayout(name, form, tuple(order if form == "order" else strides))


def _sampled(size: int | SymInt) -> int:
    """Its value at the sample, without a guard on it."""
    return size if isinstance(size, int) else int(size.node.hint)
