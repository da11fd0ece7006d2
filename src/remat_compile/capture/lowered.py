"""A captured and lowered model, as cost sources and backends take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec

from ..ir.diagnostics import Diagnostic, fail
from ..ir.program import Program
from .guards.call_guards import CallGuards
from .guards.settings import Settings
from .trace.autocast import Autocast
from .trace.branches import HostRead
from .trace.module import WholeModel, has_values
from .trace.outputs import Results, asks_for_cache, tensors_of

if TYPE_CHECKING:
    from .trace.joint import Joint


@dataclass(frozen=True, eq=False)
class Exported:
    """A model exported once: enough to trace its joint graph again and to run it.

    `module` is what `torch.export` gives back (`ep.module()`), sharing its parameters
    with `original`, or `original` itself where sizes are static. `flat_args` are the
    sample's leaves; non-tensors were baked in.
    `has_checkpoints` says that `module` may hold regions of `torch.utils.checkpoint`.
    `is_live` says that `original` is the user's own module, whose Python can be run: its joint
    graph is traced from there, so that custom backwards and hooks are part of it. `results` is the
    form of what it returns. `changing` names attributes of modules that its forward changes, hooks
    that it registers among them, and `guards` are those of its call.
    With `has_places` it puts the lines of the model on what is traced of it by itself.
    `autocast` is what was around the export, `given` the module that was passed where that is one
    of several replicas, of which `original` is this process's. With `with_cache` it makes
    caches for the generation of text, as its configuration asks. `settings` are the process's.
    Where parameters do not lie on `device`, `original` and `args` are fake tensors there, and
    `home` is the same with the user's own, which `is_away`.
    """

    original: nn.Module
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    flat_args: tuple[Any, ...]
    in_spec: TreeSpec
    trace_args: tuple[Any, ...]
    trace_kwargs: dict[str, Any]
    symbol_names: Mapping[str, str]
    symbol_ranges: Mapping[str, tuple[int, int]]
    device: torch.device
    autocast: Autocast
    warnings: tuple[Diagnostic, ...] = ()
    has_checkpoints: bool = False
    is_live: bool = False
    has_places: bool = False
    results: Results | None = None
    changing: frozenset[str] = frozenset()
    guards: CallGuards | None = None
    given: nn.Module | None = None
    with_cache: bool = False
    settings: Settings = field(default_factory=Settings.now)
    home: Exported | None = None
    is_away: bool = False

    @property
    def traced(self) -> nn.Module:
        """The module whose forward and backward are traced.

        The policies of `torch.utils.checkpoint` stand in the exported module only.
        """
        if self.is_live and not self.has_checkpoints:
            return WholeModel(
                self.original, self.results, with_cache=self.with_cache, autocast=self.autocast
            )
        return self.module

    def with_caches(self) -> Exported | None:
        """The same with the caches that eager makes; None where there are none, or that is so."""
        is_other = self.is_live and not self.has_checkpoints and not self.with_cache
        return (
            replace(self, with_cache=True) if is_other and asks_for_cache(self.original) else None
        )

    @property
    def returns(self) -> Results | None:
        """The form that a traced call's flat tensors are put into; None where they have it."""
        return None if self.has_checkpoints or not self.is_live else self.results

    def tensors(self, made: Any) -> list[Tensor]:
        """The tensors of what `original` returned, or a drop-in for it, as the step has them."""
        return tensors_of(made, self.returns)


@dataclass(frozen=True)
class Lowered:
    """A program and its ties to the joint graph it came from.

    `nodes` gives the graph node (with its fake value) of every aNode and view;
    `placeholders` the aNode of each flat AOT input before the tangents (ties repeat);
    `forward_outputs` and `backward_outputs` the names in AOT's order. `constants` are
    tensors that the model made from literals, or holds beside parameters and buffers. `reads` are
    numbers of the arguments by which the forward goes: the program is that of calls with the same.
    """

    exported: Exported
    joint: Joint
    program: Program
    nodes: Mapping[str, fx.Node]
    placeholders: tuple[str | None, ...]
    tangents: tuple[str, ...]
    forward_outputs: tuple[str | None, ...]
    backward_outputs: tuple[str | None, ...]
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    warnings: tuple[Diagnostic, ...] = ()
    reads: tuple[HostRead, ...] = ()

    def with_program(self, program: Program, origin: Mapping[str, str] | None = None) -> Lowered:
        """The same ties under a program whose costs, schedules or header were filled. `origin`
        has the known name behind each other name."""
        added = {new: self.nodes[name] for new, name in (origin or {}).items()}
        return replace(self, program=program, nodes={**self.nodes, **added})

    def layouts(self) -> tuple[tuple[str, str], ...]:
        """Return the layout of every tensor in memory, by name, as text: operators take other bytes
        and times for other strides, and the program tells of shapes only."""
        values = ((name, node.meta.get("val")) for name, node in sorted(self.nodes.items()))
        return tuple(
            (name, f"{value.stride()} at {value.storage_offset()}")
            for name, value in values
            if isinstance(value, Tensor) and value.layout is torch.strided
        )

    def values(self) -> dict[str, Tensor]:
        """The caller's own tensors of everything it holds, by aNode name.

        FBError FB0516 for a model on `meta`, which holds none.
        """
        if not has_values(self.exported.original):
            message = "the model lies on the meta device and has no values to compute with"
            fail("FB0516", message, hint="plan it for a device, or give it values (to_empty)")
        exported, binding = self.exported, self.program.binding
        values: dict[str, Tensor] = {}
        for param in binding.params:
            values[param.name] = exported.original.get_parameter(param.names[0])
        for buffer in binding.buffers:
            if buffer.name in self.constants:
                values[buffer.name] = self.constants[buffer.name]
            else:
                values[buffer.name] = exported.module.get_buffer(buffer.names[0])
        tensors = [leaf for leaf in exported.flat_args if isinstance(leaf, Tensor)]
        for argument, tensor in zip(binding.arguments, tensors, strict=True):
            values[argument.name] = tensor
        return values
