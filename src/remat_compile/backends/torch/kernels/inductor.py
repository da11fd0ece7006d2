"""The one file that calls Inductor: a function of tensors, compiled for fixed layouts.

`compile_fx_inner` is its narrowest entry that is the same in PyTorch 2.7 to 2.13: a traced and
decomposed graph in, a function of a list of tensors out, with neither guards nor autograd around
it, and with Inductor's own cache on disk (`TORCHINDUCTOR_CACHE_DIR`). It is private: a test in
`tests/backends/torch/test_kernels.py` says first where a release of PyTorch changed it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor, fx

from .label_gradients import LABEL_GRADIENTS

Function = Callable[..., tuple[Tensor, ...]]

_ATEN = torch.ops.aten
_PATCHING = RLock()
"""Lock around the exchange of `AsyncCompile.wait`: who reads it meanwhile would put that back
later."""
_DIVISIONS = (_ATEN.div, _ATEN.floor_divide, _ATEN.remainder, _ATEN.fmod)


class KernelError(Exception):
    """Why a function has no kernel."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor without its values. One that `is_flagged` is negated or conjugated by a mark only
    (`Tensor.is_neg`, `Tensor.is_conj`), which a kernel does not see: it reads other values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    is_flagged: bool = False

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        shape, flagged = tuple(tensor.shape), tensor.is_neg() or tensor.is_conj()
        return Layout(shape, tensor.stride(), tensor.dtype, str(tensor.device), flagged)


@dataclass(frozen=True)
class Traced:
    """A function as Inductor takes it."""

    module: fx.GraphModule
    inputs: Sequence[Tensor]
    mode: Any

    @property
    def is_generated(self) -> bool:
        """Return whether all of it becomes generated code that raises no errors and gives the same
        bits each time: no call of a library, no random numbers, no sum in the order of threads,
        nothing that is picked by an index in a tensor.

        Tags say so of pointwise operators, reductions and views; of others (`cat`, padding, the
        gradient of a slice), what Inductor lowers them to. Of those none that finds places, as max
        pooling does.
        """
        nodes = [n for n in self.module.graph.nodes if n.op == "call_function"]
        if not all(_is_repeatable(n.target) for n in nodes) or any(map(_may_divide_by_0, nodes)):
            return False
        untagged = [n for n in nodes if not _is_tagged(n.target)]
        if any(map(_finds_places, untagged)):
            return False
        return not untagged or _is_lowered_to_code(self)


def missing(device: torch.device) -> str | None:
    """Return what Inductor lacks here for kernels of the device, in words; None where it has
    all."""
    if device.type != "cpu":
        return None if torch.utils._triton.has_triton() else "Triton is not installed"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError, OSError):
        return "no C++ compiler is installed (g++ or clang++; `CXX` names one)"
    return None


def kernel_settings() -> list[tuple[str, str]]:
    """Settings of Inductor and AOTAutograd, as their own caches look at them."""
    from torch._functorch import config as functorch
    from torch._inductor import config

    portable = ((of.__name__, of.save_config_portable()) for of in (config, functorch))
    return [(name, repr(sorted(settings.items()))) for name, settings in portable]


def trace(function: Function, layouts: Sequence[Layout]) -> Traced:
    """The function run once on tensors without values. KernelError where that fails."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from ....device.fake_tensors import FakeTensorMode

    mode = FakeTensorMode(shape_env=ShapeEnv())  # without one, Inductor keeps nothing on disk
    with mode, torch.no_grad():
        inputs = [
            torch.empty_strided(at.shape, at.stride, dtype=at.dtype, device=at.device)
            for at in layouts
        ]
        try:
            table = {**select_decomp_table(), **LABEL_GRADIENTS}
            module = make_fx(function, decomposition_table=table)(*inputs)
        except Exception as error:
            raise KernelError(short(error)) from error
    return Traced(module, inputs, mode)


Compiled = Callable[[list[Tensor]], Sequence[Tensor]]
"""A function that takes its arguments in a list."""


@dataclass(frozen=True)
class Compiling:
    """A kernel whose generated code is compiled by threads of Inductor's, until `kernel` waits for
    it. `waits` are what its module does where it is loaded otherwise."""

    compiled: Compiled
    waits: Sequence[Callable[[], None]] = ()

    def kernel(self) -> Compiled:
        """KernelError where the code cannot be compiled or loaded."""
        try:
            for wait in self.waits:
                wait()
        except Exception as error:  # whatever a compiler may raise
            raise KernelError(short(error)) from error
        return self.compiled


def compile_traced(traced: Traced) -> Compiling:
    """Writes the code of a kernel and begins to compile it. KernelError where there is none.

    Results have the strides that the function gives them.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    output = traced.module.graph.output_node()
    made = output.args[0]
    assert isinstance(made, Sequence)
    output.meta["user_visible_output_idxs"] = list(range(len(made)))
    strides = [node.meta["val"].stride() for node in made if isinstance(node, fx.Node)]
    output.meta["original_output_strides"] = strides
    # Else Inductor compiles and loads a library for each kind of vector instructions, for seconds.
    # What the processor has is known, and a compiler that lacks it makes no kernel.
    vectors = config.cpp.vec_isa_ok is not False
    try:
        with (
            torch.no_grad(),
            tracing(TracingContext(traced.mode)),
            config.patch({"size_asserts": True, "cpp.vec_isa_ok": vectors}),
            waits_kept() as waits,
        ):
            compiled: Any = compile_fx_inner(traced.module, list(traced.inputs))
    except Exception as error:  # whatever a compiler may raise
        raise KernelError(short(error)) from error
    # What is around it notes executions, and takes longer than a small kernel.
    return Compiling(getattr(compiled, "current_callable", None) or compiled, waits)


@contextmanager
def waits_kept() -> Iterator[list[Callable[[], None]]]:
    """Where a generated module that this thread loads would wait for its compilers, it goes on; the
    waits are given instead. Until then its kernels stand in it as promises.

    A module submits all its code first, and `AsyncCompile.wait` is its last line but for `call`.
    One thread at a time is inside.
    """
    from torch._inductor.async_compile import AsyncCompile

    waits: list[Callable[[], None]] = []
    own = get_ident()
    with _PATCHING:
        wait = AsyncCompile.wait

        def kept(self: AsyncCompile, scope: dict[str, Any]) -> None:
            if get_ident() == own:
                waits.append(partial(wait, self, scope))
            else:
                wait(self, scope)

        AsyncCompile.wait = kept  # type: ignore[method-assign]
        try:
            yield waits
        finally:
            AsyncCompile.wait = wait  # type: ignore[method-assign]


def _is_repeatable(target: object) -> bool:
    tags = getattr(target, "tags", ())
    return torch.Tag.nondeterministic_seeded not in tags and (
        torch.Tag.dynamic_output_shape not in tags
    )


def _is_tagged(target: object) -> bool:
    schema = getattr(target, "_schema", None)
    if schema is None:
        return getattr(target, "__name__", "") == "getitem"
    tags = getattr(target, "tags", ())
    views = any(returned.alias_info is not None for returned in schema.returns)
    takes = any("Tensor" in str(argument.type) for argument in schema.arguments)
    return views or not takes or torch.Tag.pointwise in tags or torch.Tag.reduction in tags


def _may_divide_by_0(node: fx.Node) -> bool:
    """Return whether it divides integers by a tensor: where that holds a 0 eager raises an error,
    and generated code ends the process."""
    packet = getattr(node.target, "overloadpacket", None)
    divides = packet is not None and packet in _DIVISIONS
    return divides and isinstance(node.args[1], fx.Node) and _is_integer(node.meta["val"])


def _finds_places(node: fx.Node) -> bool:
    """Return whether an operator makes integers of what are none.

    Inductor's max pooling gives a place outside of the tensor, -10 say, for a window that is
    -inf all over and reaches into the padding. Eager's gradient writes there without a look.
    """
    made = node.meta["val"]
    several = made if isinstance(made, tuple | list) else (made,)
    read = [n.meta["val"] for n in node.all_input_nodes]
    return any(map(_is_integer, several)) and not all(map(_is_integer, read))


def _is_integer(value: object) -> bool:
    """Return whether it is a tensor of integers, or of `bool`."""
    if not isinstance(value, Tensor):
        return False
    return not value.dtype.is_floating_point and not value.dtype.is_complex


def _is_lowered_to_code(traced: Traced) -> bool:
    """Return whether Inductor lowers the function to loops alone; to nothing where it fails."""
    from torch._guards import TracingContext, tracing
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    graph = fx.Graph()  # lowering writes into the graph that it is given
    graph.output(graph.graph_copy(traced.module.graph, {}))
    inputs = list(traced.inputs)
    try:
        with torch.no_grad(), warnings.catch_warnings(), tracing(TracingContext(traced.mode)):
            warnings.simplefilter("ignore")  # of what is not lowered
            lowering = GraphLowering(fx.GraphModule(traced.module, graph), example_inputs=inputs)
            with V.set_graph_handler(lowering), V.set_fake_mode(traced.mode):
                lowering.run(*inputs)
                return all(map(_is_loop, lowering.operations))
    except Exception:  # whatever lowering may raise: then there is no kernel
        return False


def _is_loop(operation: Any) -> bool:
    """Return whether it is computed by loops that are written for it, or only has its place.

    Not one that reads or writes where a tensor says: an index that is out of range, of which eager
    raises an error, ends the process where several threads run the loop, and what is added there
    is added in the order of threads.
    """
    from torch._inductor import ir

    if not isinstance(operation, ir.ComputedBuffer):
        return isinstance(operation, ir.NopKernel)
    touched: Iterable[Any] = operation.get_read_writes().reads_and_writes()
    return not any(at.is_indirect() for at in touched)


def short(error: Exception) -> str:
    """The first line of what a compiler raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]
