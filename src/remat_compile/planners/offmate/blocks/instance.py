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
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ....ir.program import Program, Target
from ....ir.semantics.sizes import Sizes
from ...chains.block_options import block_instance, option_of
from ...chains.chain import Chain, chain_of_program
from ...chains.stages import BlockOption, Stage, save_all, stages_of
from ...instance import Instance, order_without
from ...offload.copies.place import copy_ns


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
    memories. `cpu_updates` says whether the CPU may update."""

    options_L: tuple[tuple[Option, ...], ...]
    groups: tuple[Group, ...]
    interface_T: tuple[int, ...]
    target: Target
    rates: Rates = field(default_factory=Rates)
    cpu_updates: bool = True

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


def instance_of(
    program: Program, rates: Rates | None = None, *, small_bytes: int = 10 << 20
) -> StepInstance:
    """The blocks of a program: its chain's stages, the loss last. Options are to keep all that the
    backward reads, to run the forward again, and to offload what is not cheap.

    Parameters below `small_bytes` stay on the device, with gradient and states, and so does all
    else that the caller holds.
    """
    rates = rates or Rates()
    graph, sizes = program.graph, Sizes.of(program)
    inst = Instance.of(program, "activation")
    chain = chain_of_program(inst)
    ways = [_ways(chain, i, program.target) for i in range(len(chain))]
    stages = stages_of(chain, [[option for option, _ in some] for some in ways])
    stage_of = {inst.names_C[c]: i for c, i in enumerate(chain.stage_C) if i >= 0}
    users: dict[str, set[int]] = defaultdict(set)
    for c in graph.cnodes:
        for name in {*graph.reads(c), *graph.reads(c, 2)}:
            users[name].add(stage_of.get(c.name, len(chain) - 1))
    held = sum(sizes.anode[a.name] for a in graph.anodes if a.kind in ("input", "buffer", "const"))
    by_blocks: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for param in program.binding.params:
        size, grad = sizes.anode[param.name], 0
        blocks = users[param.name]
        if param.grad is not None:
            storage = graph.storage[param.grad]
            grad = sizes.anode[storage]
            blocks = blocks | {stage_of.get(graph.writer[storage].name, 0)}
        if size < small_bytes or not blocks:
            held += size + grad + round(grad * rates.states)
        else:
            by_blocks[tuple(sorted(blocks))].append(Tensor(param.name, size, grad))
    options = tuple(
        tuple(_priced(inst, stage, k, sent) for k, (_, sent) in enumerate(some))
        for stage, some in zip(stages, ways, strict=True)
    )
    groups = tuple(Group(tuple(tensors), blocks) for blocks, tensors in sorted(by_blocks.items()))
    return StepInstance(options, groups, _interface(stages, held), program.target, rates)


def _ways(
    chain: Chain, i: int, target: Target
) -> list[tuple[BlockOption, tuple[tuple[int, int], ...]]]:
    """The options of a block, each with what it sends to the host (Zhao 2024, 4.4)."""
    everything = save_all(chain, i)
    if i == len(chain) - 1 or not chain.backward_N[i]:
        return [(everything, ())]
    block = block_instance(chain, i)
    again = frozenset(c for c in range(block.loss) if block.makable_C[c])
    nothing = option_of(chain, i, order_without(block, again))
    ways: list[tuple[BlockOption, tuple[tuple[int, int], ...]]] = [(everything, ())]
    size = chain.instance.size_A
    if sum(size[a] for a in nothing.kept) < sum(size[a] for a in everything.kept):
        ways.append((nothing, ()))
    if target.has_link and i < len(chain) - 2:
        cheap = frozenset(c for c in again if _is_cheap(block, c, target))
        selective = option_of(chain, i, order_without(block, cheap))
        if pieces := _pieces(chain, selective):
            ways.append((selective, pieces))
    return ways


def _is_cheap(block: Instance, c: int, target: Target) -> bool:
    """True if it takes less time than a copy of its results to the host and back."""
    size = sum(block.size_A[a] for a in block.rewrites_C[c])
    there = copy_ns(size, target.d2h_bytes_per_s, target)
    return block.retime_C[c] < there + copy_ns(size, target.h2d_bytes_per_s, target)


def _pieces(chain: Chain, option: BlockOption) -> tuple[tuple[int, int], ...]:
    inst, now, pieces = chain.instance, 0, []
    for c in option.forward:
        now += inst.time_C[c]
        if size := sum(inst.size_A[a] for a in inst.writes_C[c] if a in option.kept):
            pieces.append((now, size))
    return tuple(pieces)


def _priced(inst: Instance, stage: Stage, k: int, sent: tuple[tuple[int, int], ...]) -> Option:
    option = stage.options[k]
    kind = "offload" if sent else "recompute" if k else "keep"
    gone = sum(size for _, size in sent)
    saved = max(0, option.hold_bytes - stage.cross_bytes - gone)
    first, back = option.first, option.backward
    return Option(kind, first.time_ns, back.time_ns, saved, first.peak_bytes, back.peak_bytes, sent)


def _interface(stages: list[Stage], held: int) -> tuple[int, ...]:
    """What is there in each step beside the running block and what blocks save: inputs of blocks,
    permanent values, and what the caller holds."""
    before, forward, backward = held, [], []
    for stage in stages:
        forward.append(before + stage.held_first)
        backward.append(before + stage.held_again)
        before += stage.cross_bytes
    return (*forward, *reversed(backward))
