"""A program: what one `.fbir` file holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from .graph import Graph
from .schedule import Schedule
from .span import Span

CostSource = Literal["none", "measured", "roofline"]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The layout of a tensor of the caller that is not contiguous.

    `order`: its dimensions from the outermost to the innermost one, nothing between elements;
    [0, 2, 3, 1] is what PyTorch calls channels_last. `strides`, in elements, for any other.
    """

    name: str
    form: Literal["order", "strides"]
    numbers: tuple[int, ...]
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Header:
    """Where a graph was captured. `costs` says what its times and workspaces rest on.

    `replays` says that each replay form with a call of its own was run at capture and gave
    the bits of the first execution. `layouts` are those of the caller's tensors that are not
    contiguous; None where nobody wrote them down. `run_once` are cNodes that no schedule may run a
    second time (FB0490), by the user's wish.
    """

    version: int = 1
    device: str = "cpu"
    threads: int = 1
    torch_version: str = ""
    costs: CostSource = "none"
    source: str | None = None
    sha256: str | None = None
    replays: Literal["", "compared"] = ""
    layouts: tuple[TensorLayout, ...] | None = None
    run_once: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dynamic dimension, `low <= value <= high`, captured at `sample`.

    It is read from the shape of an argument: `argument` is the index in the binding
    and `dim` the axis.
    """

    name: str
    low: int
    high: int
    sample: int
    argument: int
    dim: int
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """The device planned for. Bandwidths in bytes per second; sizes in bytes.

    `host_bytes` bounds the copies on the host of every plan for this target. `both_bytes_per_s` is
    what both directions move together while both are busy; None for the sum of their rates.
    `copy_issue_ns` is the time of the compute stream that each copy takes.
    """

    name: str = "cpu"
    memory_bytes: int | None = None
    granularity_bytes: int = 1
    host_bytes: int | None = None
    d2h_bytes_per_s: int | None = None
    h2d_bytes_per_s: int | None = None
    both_bytes_per_s: int | None = None
    copy_latency_ns: int = 0
    copy_issue_ns: int = 0

    @property
    def has_link(self) -> bool:
        """True if the bandwidth to and from the host is known."""
        return self.d2h_bytes_per_s is not None and self.h2d_bytes_per_s is not None

    def with_link(
        self,
        d2h: int,
        h2d: int,
        both: int | None = None,
        latency_ns: int = 0,
        issue_ns: int = 0,
    ) -> Target:
        """This device with another link to its host; rates in bytes per second."""
        return replace(
            self,
            d2h_bytes_per_s=d2h,
            h2d_bytes_per_s=h2d,
            both_bytes_per_s=both,
            copy_latency_ns=latency_ns,
            copy_issue_ns=issue_ns,
        )

    @property
    def shared_bytes_per_s(self) -> int | None:
        """`both_bytes_per_s` where it is less than the sum, so that copies slow each other down."""
        d2h, h2d, both = self.d2h_bytes_per_s, self.h2d_bytes_per_s, self.both_bytes_per_s
        if d2h is None or h2d is None or both is None or both >= d2h + h2d:
            return None
        return both


@dataclass(frozen=True, slots=True)
class Argument:
    """A flat tensor argument of the model; `path` as in `args[0]` or `kwargs['mask']`."""

    path: str
    name: str
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ParamBinding:
    """A parameter with all its names (ties) and where its gradient is found.

    `grad` is an aNode or view, or None for a parameter that gets no gradient.
    """

    names: tuple[str, ...]
    name: str
    grad: str | None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BufferBinding:
    """A buffer or lifted constant; `update` holds its contents after the forward."""

    names: tuple[str, ...]
    name: str
    update: str | None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Result:
    """A flat output of the model, and the tangent that belongs to it."""

    name: str
    tangent: str | None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """The interface between the graph and its caller.

    `input_grads` pairs the index of an argument with where its gradient is found.
    """

    arguments: tuple[Argument, ...] = ()
    params: tuple[ParamBinding, ...] = ()
    buffers: tuple[BufferBinding, ...] = ()
    results: tuple[Result, ...] = ()
    input_grads: tuple[tuple[int, str], ...] = ()
    grads: Literal["fresh", "accumulate"] = "fresh"


@dataclass(frozen=True, slots=True)
class Budget:
    """A bound in bytes.

    `device` bounds all device bytes of the step; `activation` bounds what comes on top
    of parameters, buffers, constants, inputs and parameter gradients; `host` bounds the
    copies that the host holds. (Planners take the bound of the host from the target.)
    """

    bytes: int
    kind: Literal["device", "activation", "host"] = "device"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Further claims and coverage of a proof, with a seal over all of it.

    `time_ns` is the time of the schedule, `least_time_ns` and `least_bytes` what no schedule of
    the graph can do without, all at the sample. `budgets` were asked for; `ranges` are the
    symbols (name, low, high) that the bounds hold for. `version` is that of remat-compile.
    `assuming` are the keys of what the proof rests on and does not cover.
    """

    time_ns: int
    least_time_ns: int
    least_bytes: int
    budgets: tuple[Budget, ...]
    ranges: tuple[tuple[str, int, int], ...]
    version: str
    seal_sha256: str
    assuming: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proven:
    """The record of a proof: obligations by name, bounds, and the solver."""

    schedule: str
    obligations: tuple[str, ...]
    device_bytes: int
    activation_bytes: int
    prover: str
    graph_sha256: str
    host_bytes: int = 0
    certificate: Certificate | None = None
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The bounds as budgets; that of the host where there is anything on it."""
        device, activation = Budget(self.device_bytes), Budget(self.activation_bytes, "activation")
        host = (Budget(self.host_bytes, "host"),) if self.host_bytes else ()
        return (device, activation, *host)


@dataclass(frozen=True)
class Program:
    graph: Graph
    binding: Binding = Binding()
    header: Header = Header()
    symbols: tuple[Symbol, ...] = ()
    target: Target = Target()
    schedules: tuple[Schedule, ...] = ()
    proven: tuple[Proven, ...] = ()

    @property
    def sample(self) -> dict[str, int]:
        """The assignment of the symbols at which the graph was captured."""
        return {s.name: s.sample for s in self.symbols}

    @property
    def held_since_loss(self) -> frozenset[str]:
        """The storages that the caller holds from the loss on: of the results, and what the loss
        makes of kind `output`, gradients that the caller frees itself."""
        graph = self.graph
        made = {name for name in graph.loss.results if graph.anode[name].kind == "output"}
        return frozenset({graph.storage[r.name] for r in self.binding.results} | made)

    def with_schedule(self, schedule: Schedule) -> Program:
        """The program with this schedule added, in place of one of the same name."""
        kept = tuple(s for s in self.schedules if s.name != schedule.name)
        proven = tuple(p for p in self.proven if p.schedule != schedule.name)
        return replace(self, schedules=(*kept, schedule), proven=proven)
