"""A training step as blocks, for plans that also move parameters, gradients and optimizer states.

Zhao 2024, chapter 4. The step runs the forwards of blocks 0 .. L-1 and then their backwards, in 2 L
*steps* which repeat for ever: forward of block i is step i, its backward step 2 L - 1 - i. All that
is on the device at some time in a step counts in all of it: bytes are taken and given back between
steps.

Index legend: `x_T` has one entry per step.

Tensors that the same blocks use are a *group* w. Its first use is the forward of its first block
(`first`, f_w), and its gradient is complete with the backward of that block (`last_grad`, g_w).

    >>> group = Group((Tensor("w", 8, 8),), (1, 2))
    >>> group.first, group.last_grad(4), list(group.between(4))
    (1, 6, [7, 0])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ....ir.graph import Graph
from ....ir.program import Program, Target
from ....ir.rewrites.updates import for_planners, gradients_of, has_updates
from ....ir.semantics.sizes import Sizes
from ...chains.answer import chain_for
from ...chains.block_options import block_instance, option_of
from ...chains.chain import Chain, chain_from_stages
from ...chains.stages import BlockOption, Stage, save_all, stages_of
from ...hierarchy.partition.children import Limits, children_of
from ...hierarchy.partition.forward import ForwardGraph
from ...instance import Instance, Order, order_without
from ...offload.copies.place import copy_ns
from ...offload.rk_pofo import dropping

_FEW_BLOCKS = 4
_SHARES = (0.4, 0.8)
"""Shares of a block's bytes that can be made again, the cheapest first: an option each."""


@dataclass(frozen=True, slots=True)
class Option:
    """A way to run a block. `saved_bytes` stay on the device between its forward and its backward;
    `forward_bytes` and `backward_bytes` are the most that it takes in them, these included, its
    input not. `sent` are the pieces that go to the host instead: (nanoseconds after the start of
    the forward, bytes); they leave during the forward, and come back during the step before the
    backward."""

    name: str
    forward_ns: int
    backward_ns: int
    saved_bytes: int
    forward_bytes: int
    backward_bytes: int
    sent: tuple[tuple[int, int], ...] = ()

    @property
    def sent_bytes(self) -> int:
        return sum(size for _, size in self.sent)

    def alone_ns(self, target: Target) -> int:
        """Nanoseconds of the forward, with the end of its copies if the link is free."""
        ends = 0
        for ready, size in self.sent:
            ends = max(ends, ready) + copy_ns(size, target.d2h_bytes_per_s, target)
        return max(self.forward_ns, ends)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter; `grad_bytes` is 0 where it is not trained."""

    name: str
    size_bytes: int
    grad_bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that are used by the same blocks, in rising order."""

    tensors: tuple[Tensor, ...]
    blocks: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def grad_bytes(self) -> int:
        return sum(tensor.grad_bytes for tensor in self.tensors)

    @property
    def first(self) -> int:
        return self.blocks[0]

    def last_grad(self, blocks: int) -> int:
        return 2 * blocks - 1 - self.blocks[0]

    def uses(self, blocks: int) -> frozenset[int]:
        """The steps that read it."""
        return frozenset(t for i in self.blocks for t in (i, 2 * blocks - 1 - i))

    def between(self, blocks: int) -> Iterator[int]:
        """The steps after its last gradient and before its first use, through the turn."""
        count = 2 * blocks
        for t in range(self.last_grad(blocks) + 1, count + self.first):
            yield t % count


@dataclass(frozen=True, slots=True)
class Rates:
    """The optimizer: bytes of gradient that the device and the CPU update in a second (None: in no
    time), states for a byte of gradient (Adam in one type: 2), and the CPU's time for the
    management of a step (H of Zhao 2024, 4.7.1)."""

    device_bytes_per_s: float | None = None
    cpu_bytes_per_s: float | None = None
    states: float = 2.0
    manage_ns: int = 0

    def device_ns(self, grad_bytes: float) -> float:
        return grad_bytes * 1e9 / self.device_bytes_per_s if self.device_bytes_per_s else 0.0

    def cpu_ns(self, grad_bytes: float) -> float:
        return grad_bytes * 1e9 / self.cpu_bytes_per_s if self.cpu_bytes_per_s else 0.0


@dataclass(frozen=True)
class StepInstance:
    """`options_L` has the options of each block, `interface_T` the bytes of what blocks give each
    other that are there in a step, and all else that is fixed. `target` has the link and both
    memories. `cpu_updates` says whether the CPU may update; `through_turn` whether copies and its
    updates may run on from one turn into the next."""

    options_L: tuple[tuple[Option, ...], ...]
    groups: tuple[Group, ...]
    interface_T: tuple[int, ...]
    target: Target
    rates: Rates = field(default_factory=Rates)
    cpu_updates: bool = True
    through_turn: bool = True

    @property
    def blocks(self) -> int:
        return len(self.options_L)

    @property
    def steps(self) -> int:
        return 2 * len(self.options_L)

    def block(self, t: int) -> int:
        """The block that step t runs."""
        return t if t < self.blocks else self.steps - 1 - t

    @property
    def memory_bytes(self) -> int:
        """The budget; more than any plan needs where there is none."""
        memory = self.target.memory_bytes
        return memory if memory is not None else 1 << 60

    def under(self, memory_bytes: int | None) -> StepInstance:
        """The same with another budget of the device."""
        return replace(self, target=replace(self.target, memory_bytes=memory_bytes))

    @property
    def unlimited_ns(self) -> int:
        """The time with everything on the device: fastest options, updates there."""
        compute = sum(
            min(o.forward_ns + o.backward_ns for o in options if not o.sent)
            for options in self.options_L
        )
        return compute + round(self.rates.device_ns(sum(g.grad_bytes for g in self.groups)))


@dataclass(frozen=True)
class Blocks:
    """A program as blocks: the instance, and how each option of each block runs."""

    instance: StepInstance
    runs_L: tuple[tuple[BlockOption, ...], ...]

    def order(self, options: tuple[int, ...]) -> Order:
        """The computations of the step with these options."""
        runs = [runs[k] for runs, k in zip(self.runs_L, options, strict=True)]
        forward = [c for run in runs for c in run.forward]
        return [*forward, *(c for run in reversed(runs) for c in run.backward)]


def blocks_of(
    program: Program,
    rates: Rates | None = None,
    *,
    small_bytes: int = 10 << 20,
    most_blocks: int = 40,
) -> Blocks:
    """The blocks of a program: stages of its chain or clusters, the loss last. Their options keep
    all that the backward reads, or make some or all of it again, the cheapest first.

    Parameters below `small_bytes` stay on the device, with gradient and states, and so does all
    else that the caller holds. Where the program has updates of an optimizer, a tensor is what one
    of them takes, by its name, and the rates are theirs.
    """
    graph, sizes = program.graph, Sizes.of(program)
    trained = _updated(graph, sizes.anode) if has_updates(program) else _bound(program, sizes.anode)
    if has_updates(program):
        rates = _rates_of(graph, trained, sizes.anode)
    rates = rates or Rates()
    inst = Instance.of(without_update_times(program), "activation")
    chain = _chain_of(inst, most_blocks)
    ways = [_ways(chain, i) for i in range(len(chain))]
    stages = stages_of(chain, ways)
    stage_of = {inst.names_C[c]: i for c, i in enumerate(chain.stage_C) if i >= 0}
    users: dict[str, set[int]] = defaultdict(set)
    for c in graph.cnodes:
        for name in {*graph.reads(c), *graph.reads(c, 2)}:
            users[name].add(stage_of.get(c.name, len(chain) - 1))
    held = sum(sizes.anode[a.name] for a in graph.anodes if a.kind in ("input", "buffer", "const"))
    by_blocks: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for tensor, params, made in trained:
        blocks = {i for name in params for i in users[name]} | {stage_of.get(c, 0) for c in made}
        if tensor.size_bytes < small_bytes or not blocks:
            states = round(tensor.grad_bytes * rates.states)
            held += tensor.size_bytes + tensor.grad_bytes + states
        else:
            by_blocks[tuple(sorted(blocks))].append(tensor)
    options = tuple(tuple(_priced(inst, s, k) for k in range(len(s.options))) for s in stages)
    groups = tuple(Group(tuple(tensors), blocks) for blocks, tensors in sorted(by_blocks.items()))
    interface = _interface(stages, held)
    instance = StepInstance(options, groups, interface, program.target, rates, through_turn=False)
    return Blocks(instance, tuple(map(tuple, ways)))


def _chain_of(inst: Instance, most: int) -> Chain:
    """The chain of a program, neighbours joined to at most so many blocks; of a program that is
    none, the clusters of `hiremate`. What one of these reads of another one stays until the
    backward of both."""
    chain = chain_for(inst, most)
    if len(chain) >= _FEW_BLOCKS:
        return chain
    forward = ForwardGraph.of(inst)
    places = children_of(forward, Limits(most, 1))
    clusters = [[forward.cnode_P[p] for p in some] for some in places]
    cluster_of = {c: i for i, some in enumerate(clusters) for c in some}
    lasting = {
        a
        for c, i in cluster_of.items()
        for a in (*inst.reads_C[c], *inst.rereads_C[c])
        if cluster_of.get(inst.writer_A[a], i) != i
    }
    cut = chain_from_stages(inst, clusters, lasting)
    return max(chain, cut, key=len)


def without_update_times(program: Program) -> Program:
    """For planners, where an update takes no time: the rates have it."""
    base = for_planners(program)
    updates = {c.name for c in program.graph.cnodes if c.is_update}
    cnodes = (replace(c, time_ns=0) if c.name in updates else c for c in base.graph.cnodes)
    return replace(base, graph=replace(base.graph, cnodes=tuple(cnodes)))


_Trained = tuple[Tensor, tuple[str, ...], tuple[str, ...]]
"""Some parameters, their names, and the cNodes that complete their gradients."""


def _bound(program: Program, sizes: Mapping[str, int]) -> list[_Trained]:
    """The parameters, as the caller's binding has them."""
    graph, made = program.graph, list[_Trained]()
    for param in program.binding.params:
        storage = None if param.grad is None else graph.storage[param.grad]
        grad = 0 if storage is None else sizes[storage]
        writers = () if storage is None else (graph.writer[storage].name,)
        made.append((Tensor(param.name, sizes[param.name], grad), (param.name,), writers))
    return made


def _updated(graph: Graph, sizes: Mapping[str, int]) -> list[_Trained]:
    """The storages of each update, and then the parameters of none."""
    made, seen = list[_Trained](), set[str]()
    for c in (c for c in graph.cnodes if c.is_update):
        params = tuple(n for n, _ in c.takes_over if graph.anode[n].kind == "param")
        grads = gradients_of(graph, c)
        writers = tuple(graph.writer[name].name for name in grads)
        size, grad = (sum(sizes[name] for name in some) for some in (params, grads))
        made.append((Tensor(c.name, size, grad), params, writers))
        seen.update(params)
    frozen = [a.name for a in graph.anodes if a.kind == "param" and a.name not in seen]
    return made + [(Tensor(name, sizes[name], 0), (), ()) for name in frozen]


def _rates_of(graph: Graph, trained: list[_Trained], sizes: Mapping[str, int]) -> Rates:
    """The rates at which all updates together go."""
    updates = [c for c in graph.cnodes if c.is_update]
    grads = sum(tensor.grad_bytes for tensor, _, _ in trained)
    states = sum(sizes[a.name] for a in graph.anodes if a.kind == "opt_state")
    device = sum(c.time_ns or 0 for c in updates)
    host = sum(c.host_time_ns or 0 for c in updates)
    per_s = [grads * 1e9 / ns if ns else None for ns in (device, host)]
    return Rates(per_s[0], per_s[1], states / grads)


def _ways(chain: Chain, i: int) -> list[BlockOption]:
    """The options of a block: fewer and fewer bytes kept (Zhao 2024, 4.4, without its copies)."""
    everything = save_all(chain, i)
    if i == len(chain) - 1 or not chain.backward_N[i]:
        return [everything]
    block = block_instance(chain, i)
    again = frozenset(c for c in range(block.loss) if block.makable_C[c])
    orders = [*(dropping(block, share) for share in _SHARES), order_without(block, again)]
    ways = [everything]
    for option in (option_of(chain, i, order) for order in orders):
        if _kept_bytes(chain, option) < _kept_bytes(chain, ways[-1]):
            ways.append(option)
    return ways


def _kept_bytes(chain: Chain, option: BlockOption) -> int:
    return sum(chain.instance.size_A[a] for a in option.kept)


def _priced(inst: Instance, stage: Stage, k: int) -> Option:
    option, first, back = stage.options[k], stage.options[k].first, stage.options[k].backward
    saved = max(0, option.hold_bytes - stage.cross_bytes)
    kind = f"recompute {k}" if k else "keep"
    return Option(kind, first.time_ns, back.time_ns, saved, first.peak_bytes, back.peak_bytes)


def _interface(stages: list[Stage], held: int) -> tuple[int, ...]:
    """The bytes of each step beside the running block and what blocks save: inputs of blocks,
    permanent values, and what the caller holds."""
    before, forward, backward = held, [], []
    for stage in stages:
        forward.append(before + stage.held_first)
        backward.append(before + stage.held_again)
        before += stage.cross_bytes
    return (*forward, *reversed(backward))
