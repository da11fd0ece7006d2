"""The one file that touches PyTorch's private capture functions.

`aot_export_joint_with_descriptors` traces forward and backward together; its second
half compiles a partition of that graph into a callable with AOTAutograd's own runtime
wrappers (aliased outputs, mutated buffers, saved-tensor checks). No decompositions are
passed: the joint graph then holds the kernels that eager runs.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch._dynamo import nonstrict_trace
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta, OutputType, PlainTensorMeta
from torch._functorch.aot_autograd import (
    aot_compile_joint_with_descriptors,
    aot_export_joint_with_descriptors,
)
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves, tree_unflatten

from ...device.fake_tensors import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    fake_tensor_tls,
)
from ...device.strides import Strides
from ...operators.composites import kept_whole
from .branches import HostRead
from .descriptors import BufferAOTInput, ParamAOTInput
from .kernel_strides import laid_out_by_kernels
from .lock import unlogged
from .module import WholeModel, as_if_compiling, has_values
from .plain_wrappers import PlainWrappers, without_gradients

__all__ = ["HANDS_GRADIENTS_OVER", "Joint", "Strides", "as_if_compiling", "trace_joint"]

HANDS_GRADIENTS_OVER = hasattr(torch.autograd.Function, "boxed_grads_call")
"""True where a backward can free the gradients that it is given before it ends, as in PyTorch 2.13;
in 2.11 the engine holds them until then."""

NEEDS_NUMBERS = (DataDependentOutputException, GuardOnDataDependentSymNode)
"""Errors of a trace where Python reads a number that is not there."""

_OVER_ARGUMENTS = "unflattened_compiled_fn"
"""PyTorch's function around what takes flat arguments."""


@dataclass(frozen=True)
class Joint:
    """A traced joint graph. Valid only inside the `with` block of `trace_joint`."""

    graph_module: fx.GraphModule
    _descriptors: Any
    compiling: bool = False
    """True where the model was told that it is being compiled."""
    reads: tuple[HostRead, ...] = ()
    """Numbers that the forward reads of the arguments: the graph is that of calls that give the
    same."""

    def compile(
        self,
        partition: Callable[..., tuple[fx.GraphModule, fx.GraphModule]],
        forward: Callable[..., Any],
        backward: Callable[..., Any],
    ) -> Callable[..., Any]:
        """A callable over the list of parameters, buffers and leaves of the arguments,
        differentiable, in AOT's wrappers.

        `partition(joint, inputs, *, num_fwd_outputs, ...)` returns the two halves;
        `forward` and `backward` turn each into a boxed callable. May be called for several plans.
        """
        descriptors = self._copied_descriptors()
        metadata = descriptors._aot_state.fw_metadata
        if self.tangent_strides() is not None:
            metadata.subclass_tangent_meta = list(map(_as_it_comes, metadata.subclass_tangent_meta))
        compiled: Callable[..., Any] = aot_compile_joint_with_descriptors(
            descriptors,
            partition_fn=partition,
            fw_compiler=forward,
            bw_compiler=backward,
        )
        # Nothing saved is overwritten: a graph may be kept (`retain_graph`).
        descriptors._aot_state.fw_metadata.bw_donated_idxs = []
        return _over_leaves(compiled, descriptors)

    def tangent_strides(self) -> tuple[Strides, ...] | None:
        """Return the strides of the tangents, in order, as they were traced; None where sizes are
        dynamic. Where they are known, who compiles sees to the layout of what arrives, and else
        AOTAutograd does."""
        metadata = self._descriptors._aot_state.fw_metadata
        strides = [tangent.stride() for tangent in metadata.traced_tangents]
        is_plain = all(isinstance(m, PlainTensorMeta) for m in metadata.subclass_tangent_meta)
        if not is_plain or not all(isinstance(s, int) for of_one in strides for s in of_one):
            return None
        return tuple(strides)

    def held(self) -> tuple[str, ...]:
        """Paths of the parameters and buffers, in the order in which the step takes them."""
        descs = [n.meta["desc"] for n in self.graph_module.graph.find_nodes(op="placeholder")]
        return tuple(d.target for d in descs if isinstance(d, ParamAOTInput | BufferAOTInput))

    def is_plain(self) -> bool:
        """Return whether a step needs nothing of AOTAutograd's wrappers but what `PlainWrappers`
        does: results are tensors of their own, and of what it is given only contents of buffers
        change."""
        known = self._descriptors._aot_state.fw_metadata
        changed = [i for i in known.input_info if i.mutates_data or i.mutates_metadata]
        return bool(
            HANDS_GRADIENTS_OVER
            and not known.num_intermediate_bases
            and not known.tokens
            and not known.num_backward_tokens
            and not known.num_graphsafe_rng_states
            and not known.is_rng_op_functionalized
            and known.grad_enabled_mutation is None
            and not known.indices_of_inputs_that_requires_grad_with_mutations_in_bw
            and all(type(m) is PlainTensorMeta for m in known.subclass_fw_graph_out_meta)
            and all(type(m) is PlainTensorMeta for m in known.subclass_inp_meta)
            and all(
                o.output_type is OutputType.non_alias
                and o.requires_grad == o.requires_grad_for_backward
                for o in known.output_info
            )
            and not any(
                i.mutates_metadata or i.mutates_storage_metadata or i.requires_grad for i in changed
            )
        )

    def wrappers(self, grads: Sequence[str | None]) -> Joint | PlainWrappers:
        """Return the wrappers that compile a step that gives `grads`: where nothing of
        AOTAutograd's wrappers is needed, a node without them, which takes less of every step."""
        strides = self.tangent_strides()
        if strides is None or not self.is_plain():
            return self
        known = self._descriptors._aot_state.fw_metadata
        inputs = known.input_info
        if len(inputs) != len(grads):  # what is given twice is one input there
            return self
        return PlainWrappers(
            paths=self.held(),
            tangents=strides,
            updated=tuple(known.mutated_inp_runtime_indices),
            results=known.num_outputs,
            constant=tuple(i for i, o in enumerate(known.output_info) if not o.requires_grad),
            # Leaves keep their edges, as in AOTAutograd: their hooks count what arrives.
            without_gradient=tuple(
                at
                for at, (info, grad) in enumerate(zip(inputs, grads, strict=True))
                if grad is None and info.requires_grad and not info.is_leaf
            ),
            form=self._descriptors.out_spec,
        )

    def _copied_descriptors(self) -> Any:
        """Compiling writes into the state and the metadata; ours stay for the next plan."""
        copied = copy(self._descriptors)
        copied._aot_state = copy(copied._aot_state)
        copied._aot_state.fw_metadata = copy(copied._aot_state.fw_metadata)
        copied._aot_graph_capture = copy(copied._aot_graph_capture)
        return copied


class _AnyLayout:
    """Is equal to every size and every stride."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def _as_it_comes(meta: Any) -> Any:
    """Return the metadata of a tangent that AOTAutograd shall not copy into its traced layout."""
    return replace(meta, memory_format=MemoryFormatMeta(size=_AnyLayout(), stride=_AnyLayout()))


@contextlib.contextmanager
def trace_joint(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Iterator[Joint]:
    """Traces the joint graph of a module, or of an exported one (`ep.module(check_guards=False)`).

    `args` may hold fake tensors with symbolic sizes; their mode is then entered. What a
    `WholeModel` reads of numbers is answered, as `host_reads` has it, where it can be; else the
    module is traced as `torch.compile` would: many read none then (`torch.compiler.is_compiling`).
    Raises whatever the model, an operator's fake kernel or a derivative raises.
    """
    leaves = tree_leaves((args, kwargs))
    fake_mode = next((leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor)), None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.enable_grad())
        if fake_mode is not None:
            stack.enter_context(fake_mode)
        constants = mock.patch.object(fake_tensor_tls, "allow_non_fake_inputs_override", True)
        with kept_whole(), constants:
            joint = _trace(stack, module, args, kwargs)
        yield joint


def _trace(
    stack: contextlib.ExitStack,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Joint:
    """By the first way that can be traced: as it is, with answers, as if compiling (some models
    leave out only then what PyTorch cannot trace)."""

    def traced(*, compiling: bool = False) -> Joint:
        with contextlib.ExitStack() as trial, _laid_out(module, args, kwargs):
            descriptors = aot_export_joint_with_descriptors(trial, module, args, kwargs)
            stack.push(trial.pop_all())
        return Joint(descriptors.graph_module, descriptors, compiling)

    with unlogged():
        try:
            return traced()
        except Exception as error:  # whatever the model's Python or an operator raises
            failed = error
        needs_numbers = isinstance(failed, NEEDS_NUMBERS)
        if needs_numbers and isinstance(module, WholeModel):
            tracker = module.tracker_of(tree_leaves((args, kwargs)))
            # Past a number that it reads, a forward may do what cannot be traced at all.
            with contextlib.suppress(Exception), module.answered(tracker):
                return replace(traced(), reads=tuple(tracker.reads))
    try:
        with as_if_compiling():
            return traced(compiling=True)
    except Exception as error:
        raise error if needs_numbers else failed from error


def _over_leaves(compiled: Callable[..., Any], descriptors: Any) -> Callable[[list[Any]], Any]:
    """`compiled`, without flattening at each call what the caller has flat: on a model of many
    small parts that is some percent of a step."""
    inner = compiled
    while getattr(inner, "__name__", "") == _OVER_ARGUMENTS and hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    if inner is compiled:  # another PyTorch: by its own way

        def by_arguments(leaves: list[Any]) -> Any:
            args, kwargs = tree_unflatten(leaves, descriptors.in_spec)
            return compiled(*args, **kwargs)

        return by_arguments
    out_spec = descriptors.out_spec
    infos = descriptors._aot_state.fw_metadata.output_info
    constant = [at for at, info in enumerate(infos) if not info.requires_grad]

    @nonstrict_trace  # as PyTorch's own: a `torch.compile` around the model does not look inside
    def by_leaves(leaves: list[Any]) -> Any:
        return tree_unflatten(without_gradients(inner(leaves), constant), out_spec)

    return by_leaves


@contextlib.contextmanager
def _laid_out(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Inside, AOTAutograd traces tensors as real kernels lay them out: those of the fake mode that
    is there, or of one of this trace alone."""
    mode = detect_fake_mode((args, kwargs, *module.parameters(), *module.buffers()))
    context = TracingContext.try_get() if mode else TracingContext(mode := FakeTensorMode())
    with tracing(context), laid_out_by_kernels(mode, has_values=has_values(module)):
        yield
