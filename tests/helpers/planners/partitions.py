"""2-Partition and 3-Partition as steps with copies, whose least time is known by construction
(the idea is that of Shilova 2021, Theorems 7 and 9).

The forward makes tensors of the given sizes at once. Then it computes several times as long as
`goal` bytes take on the link, and behind the k-th time `k * goal` bytes must be gone, for as large
a workspace. Behind the loss there is as much time again before all tensors are read. So nothing
has to wait exactly if the tensors that are moved can be put into groups of `goal` bytes; else
copies, which move whole tensors, last longer than the computations beside them.

`Released` has tensors that are made late: between any two groups one of size 1 is made just when
all before it has to be gone, and has to be gone 1 ns later. So the link must copy exactly `goal`
bytes between two of them, as in scheduling with release times and deadlines (1 | r_j | L_max).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, permutations

from helpers.planners.graph_builder import Builder
from remat_compile.ir.program import Budget, Program
from remat_compile.planners.chains.stages import SavingOption, Skim, Stage, StageRun

_UNIT = 100
"""Bytes of a size of 1; the link takes 1 ns for them. All else is some bytes."""
_REST = 20


@dataclass(frozen=True)
class Partition:
    """`groups` of 1 is 2-Partition, the other half of `sizes` stays where it is."""

    sizes: tuple[int, ...]
    goal: int
    groups: int

    @property
    def compute_ns(self) -> int:
        return 2 * self.groups * self.goal

    @property
    def budget(self) -> Budget:
        """Of activations: all tensors, and no workspace beside them."""
        return Budget(_UNIT * sum(self.sizes) + _REST + self.groups + 1, "activation")

    def least_ns(self) -> int:
        """Of plans that recompute nothing: each tensor is gone before one of the moments, or
        stays. Its copies run without a pause, and no moment comes before those that it needs."""
        best = {frozenset[int](): 0}  # when the moments so far are over, by what is gone
        for k in range(1, self.groups + 1):
            after: dict[frozenset[int], int] = {}
            for gone, now in best.items():
                rest = set(range(len(self.sizes))) - gone
                for more in chain.from_iterable(
                    combinations(rest, n) for n in range(len(rest) + 1)
                ):
                    new = gone | set(more)
                    if self._size(new) >= k * self.goal:
                        at = max(now + self.goal, self._size(new))
                        after[new] = min(at, after.get(new, at))
            best = after
        return min(now + max(self.groups * self.goal, self._size(g)) for g, now in best.items())

    def _size(self, tensors: Collection[int]) -> int:
        return sum(self.sizes[i] for i in tensors)

    def program(self) -> Program:
        b = Builder("partition")
        b.input("x", 1)
        for i in range(len(self.sizes)):
            b.param(f"w{i}", 1, f"dw{i}")
        made = [
            b.op(["x", f"w{i}"], [(f"a{i}", "act", _UNIT * size)], time=0)
            for i, size in enumerate(self.sizes)
        ]
        h = "x"
        for k in range(1, self.groups + 1):
            b.op([h], [(f"h{k}", "act", 1)], time=self.goal)
            last = k == self.groups
            h = "y" if last else f"m{k}"
            workspace = _UNIT * k * self.goal + _REST
            b.op([f"h{k}"], [(h, "output" if last else "act", 1)], time=0, workspace=workspace)
        b.loss([h], [("d", 1)])
        b.op(["d"], [("g", "grad", 1)], phase="bwd", time=self.groups * self.goal)
        for i, forward in enumerate(made):
            reads = ["g", f"a{i}", f"w{i}"]
            b.op(reads, [(f"dw{i}", "param_grad", 1)], phase="bwd", time=0, of=[forward])
        program = b.program()
        rate = _UNIT * 10**9
        target = replace(program.target, d2h_bytes_per_s=rate, h2d_bytes_per_s=rate)
        return replace(program, target=target)

    def stages(self) -> tuple[list[Stage], int]:
        """The same with one group as a chain of stages, and its room: amounts are sizes, the link
        moves 1 of them in 1 ns, and gives bytes back while it copies."""
        assert self.groups == 1

        def stage(time: int, back: int, peak: int, hold: int) -> Stage:
            forward, backward = StageRun(time, peak), StageRun(back, hold)
            option = SavingOption(forward, forward, forward, backward, hold)
            return Stage(Skim(1, 1, 1), Skim(1, 1, 1), (option,), 1, 0, 0, 0)

        made = [stage(0, 0, size, size) for size in self.sizes]
        # The first that follows keeps the last tensor from being read by what is beside the copies.
        made += [stage(0, 0, 0, 0), stage(self.goal, self.goal, 0, 0), stage(0, 0, self.goal, 0)]
        return made, sum(self.sizes)


def two(sizes: Sequence[int]) -> Partition:
    return Partition(tuple(sizes), sum(sizes) // 2, 1)


def three(sizes: Sequence[int]) -> Partition:
    return Partition(tuple(sizes), 3 * sum(sizes) // len(sizes), len(sizes) // 3)


@dataclass(frozen=True)
class Released:
    """`sizes`, of at least 2 each, go in `groups` of `goal`; behind each a tensor of size 1."""

    sizes: tuple[int, ...]
    goal: int
    groups: int

    @property
    def compute_ns(self) -> int:
        return 2 * self.groups * (self.goal + 1)

    @property
    def budget(self) -> Budget:
        return Budget(_UNIT * (sum(self.sizes) + self.groups) + _REST, "activation")

    def least_ns(self) -> int:
        """Of plans that recompute nothing, over all orders in which tensors can leave."""
        count = len(self.sizes)
        tensors = range(count + self.groups)
        return min(self._time_of(order) for order in permutations(tensors))

    def _time_of(self, order: Sequence[int]) -> int:
        """Nanoseconds if tensors leave in this order, no more of them than must. Those from
        `len(sizes)` on are of size 1."""
        made = dict.fromkeys(range(len(self.sizes)), 0)
        queue = list(order)
        now = link = gone = 0
        for k in range(1, self.groups + 1):
            for ends in (True, False):
                now += self.goal if ends else 1
                while gone < k * (self.goal + 1) - ends:
                    i = queue.pop(0)
                    if i not in made:
                        return 10 * self.compute_ns  # waits for what is made behind this
                    link = max(link, made[i]) + self._size(i)
                    gone += self._size(i)
                now = max(now, link)
                if ends:
                    made[len(self.sizes) + k - 1] = now
        return now + max(self.compute_ns // 2, gone)

    def _size(self, i: int) -> int:
        return self.sizes[i] if i < len(self.sizes) else 1

    def program(self) -> Program:
        b = Builder("released")
        b.input("x", 1)
        made = []

        def make(i: int) -> None:
            b.param(f"w{i}", 1, f"dw{i}")
            results = [(f"a{i}", "act", _UNIT * self._size(i))]
            made.append(b.op(["x", f"w{i}"], results, time=0))  # type: ignore[arg-type]

        for i in range(len(self.sizes)):
            make(i)
        h = "x"
        for k in range(1, self.groups + 1):
            for ends in (True, False):
                part = f"{k}{'a' if ends else 'b'}"
                last = k == self.groups and not ends
                b.op([h], [(f"h{part}", "act", 1)], time=self.goal if ends else 1)
                h = "y" if last else f"m{part}"
                # Alive are all tensors made so far, of which so many bytes must be gone.
                alive = sum(self.sizes) + k - ends
                gone = k * (self.goal + 1) - ends
                room = sum(self.sizes) + self.groups - (alive - gone)
                workspace = _UNIT * room + _REST // 2
                b.op(
                    [f"h{part}"], [(h, "output" if last else "act", 1)], time=0, workspace=workspace
                )
                if ends:
                    make(len(self.sizes) + k - 1)
        b.loss([h], [("d", 1)])
        half = self.compute_ns // 2
        b.op(["d"], [("g", "grad", 1)], phase="bwd", time=half)
        for i, forward in enumerate(made):
            reads = ["g", f"a{i}", f"w{i}"]
            b.op(reads, [(f"dw{i}", "param_grad", 1)], phase="bwd", time=0, of=[forward])
        program = b.program()
        rate = _UNIT * 10**9
        target = replace(program.target, d2h_bytes_per_s=rate, h2d_bytes_per_s=rate)
        return replace(program, target=target)
