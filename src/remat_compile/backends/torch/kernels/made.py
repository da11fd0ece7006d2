"""Kernels of a program's regions: compiled once per function and layout, checked before use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from ....device.devices import allocation_unit
from ....device.memory import measure_peak
from ....ir.analysis.regions import ROUNDING, RegionFunction, region_function
from ....ir.diagnostics import Diagnostic, render
from ....ir.graph import CNode, InnerCall
from ....operators.aten import from_torch_dtype, to_torch
from ....operators.callable import callable_op
from ....operators.instances import plain_mode
from .inductor import (
    Compiled,
    Compiling,
    Function,
    KernelError,
    Layout,
    compile_traced,
    short,
    trace,
)


@dataclass
class Kernel:
    """A compiled region. `difference` is the largest from its calls on made-up values,
    `workspace_bytes` what it takes beside its results. `compiled` raises AssertionError by itself
    for an argument that it reads and that has another layout."""

    layouts: tuple[Layout, ...]
    calls: Function
    compiled: Compiled
    difference: float
    workspace_bytes: int
    is_told: bool = False
    aligned_bytes: int = 1
    """Arguments begin at multiples of it: code for CUDA copies others, which no plan has."""

    def __call__(self, *args: Tensor) -> Sequence[Tensor]:
        """As `runner` gives them."""
        return self.runner()(*args)

    def runner(self) -> Callable[..., Sequence[Tensor]]:
        """The function that a step calls, without look-ups on the way.

        It gives the results; by the calls, with the warning FB0915 the first time, where an
        argument has other strides than at compilation (those of dimensions of one element mean
        nothing), or is not aligned.
        """
        compiled, aligned, differing = self.compiled, self.aligned_bytes, self._differing

        def run(*args: Tensor) -> Sequence[Tensor]:
            try:
                return compiled([*args])
            except AssertionError:
                if (other := differing(args)) is None:
                    raise
                return self._by_calls(other, args)

        def run_aligned(*args: Tensor) -> Sequence[Tensor]:
            for tensor in args:
                if tensor.data_ptr() % aligned and (other := differing(args)) is not None:
                    return self._by_calls(other, args)
            return run(*args)

        return run if aligned == 1 else run_aligned

    def _by_calls(self, other: tuple[Tensor, Layout], args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not self.is_told:
            self.is_told = True
            warnings.warn(render(_lies_otherwise(*other), level="warning"), stacklevel=4)
        return self.calls(*args)

    def _differing(self, args: Sequence[Tensor]) -> tuple[Tensor, Layout] | None:
        """The first argument that is not as at compilation."""
        pairs = zip(args, self.layouts, strict=True)
        return next((pair for pair in pairs if not self._is_alike(*pair)), None)

    def _is_alike(self, tensor: Tensor, layout: Layout) -> bool:
        return tensor.data_ptr() % self.aligned_bytes == 0 and _is_alike(tensor, layout)


def _is_alike(tensor: Tensor, layout: Layout) -> bool:
    if tuple(tensor.shape) != layout.shape:
        return False
    pairs = zip(layout.shape, tensor.stride(), layout.stride, strict=True)
    return tensor.stride() == layout.stride or all(a == b for n, a, b in pairs if n != 1)


def _lies_otherwise(tensor: Tensor, layout: Layout) -> Diagnostic:
    if _is_alike(tensor, layout):
        why = f"begins at no multiple of {_ALIGNED_BYTES} bytes, as its kernel needs"
    else:
        why = (
            f"has strides {tensor.stride()}, and its kernel was made for {layout.shape} with "
            f"{layout.stride}"
        )
    message = f"a region runs by its calls: a tensor {tuple(tensor.shape)} {why}"
    hint = "plan without fusion here: the proven bound may not hold for these calls"
    return Diagnostic("FB0915", message, hint=hint)


def as_function(function: RegionFunction) -> Function:
    """A region as a function of tensors that runs its calls."""

    def run(*args: Tensor) -> tuple[Tensor, ...]:
        values = dict(zip(function.parameters, args, strict=True))
        for inner in function.calls:
            given = to_torch(inner.call.args, {}, values)
            kwargs = {key: to_torch(value, {}, values) for key, value in inner.call.kwargs}
            values.update(written(inner, callable_op(inner.call.op)(*given, **kwargs)))
        return tuple(values[name] for name in function.results)

    return run


def written(inner: InnerCall, made: Any) -> dict[str, Tensor]:
    """Return the results that a call inside a region writes to."""
    several = made if isinstance(made, tuple | list) else (made,)
    if inner.index is not None:
        several = (several[inner.index],)
    pairs = zip(inner.writes, several, strict=True)
    return {name: one for name, one in pairs if name is not None}


@dataclass
class Kernels:
    """Makes kernels, each once, and no more of them after `until` (of `time.monotonic`), of which
    those that were begun are compiled beside each other;
    `failures` says of which functions there is none, and why, and `by_calls` how many functions of
    a step were built without one."""

    device: torch.device
    until: float = inf
    made: dict[str, Kernel | None] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    by_calls: int = 0
    _begun: dict[str, Compiling | None] = field(default_factory=dict)
    _awaited: dict[str, Compiling] = field(default_factory=dict)
    """Kernels that are being compiled, as far as is known."""

    def kernel(self, c: CNode, args: Sequence[Tensor]) -> Kernel | None:
        """The kernel of a fused cNode that is given tensors like these (values do not count);
        None where Inductor makes none that computes the same."""
        key, function, layouts = _asked(c, args)
        if key not in self.made:
            if monotonic() > self.until:
                self._note(c, "the time for kernels is over")
                return None
            with self._failing(c, key):
                self.made[key] = self._make(key, function, layouts)
        return self.made[key]

    def known(self, c: CNode, args: Sequence[Tensor]) -> Kernel | None:
        """The kernel of a fused cNode that is given tensors like these, where it was made."""
        return self.made.get(_asked(c, args)[0])

    def text(self, c: CNode, args: Sequence[Tensor]) -> str:
        """Return the text that identifies the kernel of a fused cNode for tensors like these."""
        return _asked(c, args)[0]

    def begin(self, c: CNode, args: Sequence[Tensor]) -> None:
        """Begins to compile what `kernel` will be asked for."""
        key, function, layouts = _asked(c, args)
        if key not in self.made and key not in self._begun and monotonic() <= self.until:
            with self._failing(c, key):
                begun = self._begun[key] = self._begin(function, layouts)
                if begun is not None and begun.waits:
                    self._awaited[key] = begun

    @property
    def compiling(self) -> int:
        """Return the number of kernels that were begun and not waited for."""
        return len(self._awaited)

    def wait(self) -> None:
        """Until nothing is compiled any more, as before something is timed."""
        while self._awaited:
            _, begun = self._awaited.popitem()
            with suppress(KernelError):  # which is told to who asks for that kernel
                begun.kernel()

    @contextmanager
    def _failing(self, c: CNode, key: str) -> Iterator[None]:
        """Notes why there is no kernel where there is none."""
        try:
            with plain_mode(self.device):
                yield
        except torch.OutOfMemoryError:
            self._note(c, NO_MEMORY)
            self.made[key] = None
        except KernelError as error:
            self._note(c, str(error))
            self.made[key] = None

    def give_up(self, c: CNode, args: Sequence[Tensor]) -> None:
        """There is no kernel of this cNode: the device has no memory to time one."""
        self._note(c, NO_MEMORY)
        self.made[self.text(c, args)] = None

    def _note(self, c: CNode, why: str) -> None:
        self.failures.append(f"{c.name}: {why}")

    def _begin(self, function: RegionFunction, layouts: tuple[Layout, ...]) -> Compiling | None:
        if any(not isinstance(n, int) for at in layouts for n in (*at.shape, *at.stride)):
            raise KernelError("kernels are made for fixed sizes, and a dimension is dynamic")
        if any(layout.is_flagged for layout in layouts):
            raise KernelError("an argument is negated or conjugated by a mark that no kernel sees")
        traced = trace(as_function(function), layouts)
        return compile_traced(traced) if traced.is_generated else None

    def _make(
        self, key: str, function: RegionFunction, layouts: tuple[Layout, ...]
    ) -> Kernel | None:
        was_begun = key in self._begun
        begun = self._begun.pop(key) if was_begun else self._begin(function, layouts)
        self._awaited.pop(key, None)  # it is waited for here
        if begun is None:
            return None
        calls, compiled = as_function(function), begun.kernel()
        args = [made_up(layout) for layout in layouts]
        wanted = calls(*args)
        try:  # what it keeps on first use is not its workspace
            compiled([*args])
        except Exception as error:  # whatever a compiler may raise that begins with the first use
            raise KernelError(short(error)) from error
        results, use = measure_peak(lambda: tuple(compiled([*args])), self.device)
        own = sum(map(self._allocated, results))
        problem = _problem(args, results, wanted)
        if problem is not None:
            raise KernelError(problem)
        difference = max(map(_difference, results, wanted), default=0.0)
        workspace = max(0, use.peak_bytes_over_entry - own)
        aligned = _ALIGNED_BYTES if self.device.type == "cuda" else 1
        return Kernel(layouts, calls, compiled, difference, workspace, aligned_bytes=aligned)

    def _allocated(self, tensor: Tensor) -> int:
        """Bytes that the allocator of the device counts for a tensor."""
        unit = allocation_unit(self.device)
        return -(-tensor.untyped_storage().nbytes() // unit) * unit


def _asked(c: CNode, args: Sequence[Tensor]) -> tuple[str, RegionFunction, tuple[Layout, ...]]:
    """Return the kernel that is asked for, with the text that identifies it."""
    function, layouts = region_function(c), tuple(map(Layout.of, args))
    return repr((function, layouts)), function, layouts


def _problem(
    args: Sequence[Tensor], results: Sequence[Tensor], wanted: Sequence[Tensor]
) -> str | None:
    """Return the reason why a kernel's results cannot stand in for those of the calls."""
    storages = [t.untyped_storage().data_ptr() for t in (*args, *results) if t.numel()]
    own = [t.untyped_storage().data_ptr() for t in results if t.numel()]
    if len({*own}) < len(own) or not {*own}.isdisjoint(storages[: -len(own) or None]):
        return "its results share storage"
    for mine, other in zip(results, wanted, strict=True):
        if (mine.dtype, mine.shape, mine.stride()) != (other.dtype, other.shape, other.stride()):
            return "a result has another type, shape or stride"
        if mine.untyped_storage().nbytes() > other.untyped_storage().nbytes():
            return "a result takes more bytes"
        if not _difference(mine, other) <= ROUNDING.get(from_torch_dtype(mine.dtype), 0.0):
            return f"a result differs by {_difference(mine, other):.3g} of the largest value"
    return None


def _difference(result: Tensor, wanted: Tensor) -> float:
    """The largest difference over the largest value; infinite where one is not finite."""
    if torch.equal(result, wanted):
        return 0.0
    if not result.dtype.is_floating_point:
        return inf
    mine, other = result.double(), wanted.double()
    largest = float(other.abs().max()) or 1.0
    difference = float((mine - other).abs().max()) / largest
    return difference if difference == difference else inf


NO_MEMORY = "the device has no memory left to try a kernel"
_ALIGNED_BYTES = 16
"""Alignment that Inductor takes for granted of the arguments of code for CUDA."""
MARGIN = 64
"""Elements in front of made-up values: as many bytes, or more, as an allocator aligns to."""
_SEEDS = count()
"""Seeds of made-up values: no two tensors are alike."""


def made_up(layout: Layout) -> Tensor:
    """Normal numbers, 0 and 1 (no kernel takes an index from a tensor), behind others in their
    storage: a kernel that takes the one's begin for the other's is seen to compute something else.
    """
    storage = MARGIN + 1
    storage += sum((n - 1) * s for n, s in zip(layout.shape, layout.stride, strict=True))
    if 0 in layout.shape:
        storage = MARGIN
    generator = torch.Generator(layout.device)  # the caller's is left alone
    generator.manual_seed(next(_SEEDS))
    own: Any = {"generator": generator, "device": layout.device}
    if layout.dtype.is_floating_point:
        flat = torch.randn(storage, dtype=torch.float32, **own).to(layout.dtype)
    elif layout.dtype.is_complex:
        flat = torch.randn(storage, dtype=layout.dtype, **own)
    else:
        flat = torch.randint(0, 2, (storage,), **own).to(layout.dtype)
    return flat.as_strided(layout.shape, layout.stride, MARGIN)
