"""Positions of steps in the row of a rank, and violations of their order.

No state is stepped through: each value has the positions at which it comes, is issued, waited for,
read and freed, and the rules compare these. Bytes are differences over them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise, product

from ...ir.diagnostics import Diagnostic
from ...ir.pipeline import WAYS_OUT, Move, OnValue, Pipeline, RowStep, StageRun, Value


class RowPositions:
    """The positions of one row. `problems` has every broken rule."""

    def __init__(self, pipeline: Pipeline, rank: int):
        self.pipeline, self.rank = pipeline, rank
        self.row = pipeline.rows[rank]
        self.mine = [s for s, stage in enumerate(pipeline.stages) if stage.rank == rank]
        self.problems: list[Diagnostic] = []
        self.runs: dict[tuple[str, int, int], list[int]] = {}
        self.moves: dict[Value, list[int]] = {}
        self.waits: dict[Value, list[int]] = {}
        self.frees: dict[Value, list[int]] = {}
        for n, step in enumerate(self.row):
            if (code := self._misplaced(step)) is not None:
                self._problem(code, n)
            elif isinstance(step, StageRun):
                self.runs.setdefault((step.word, step.stage, step.microbatch), []).append(n)
            elif isinstance(step, Move):
                self.moves.setdefault(step.value, []).append(n)
            else:
                found = self.waits if step.word == "wait" else self.frees
                found.setdefault(step.value, []).append(n)

    def _problem(self, code: str, n: int | None, about: str = "") -> None:
        place = f"row {self.rank}" if n is None else f"step {n + 1} of row {self.rank}"
        span = None if n is None else self.row[n].span
        self.problems.append(Diagnostic(code, f"{place}{about}", span, hint=WAYS_OUT[code]))

    def _misplaced(self, step: RowStep) -> str | None:
        """FB1003 or FB1004 for a step that this row cannot have."""
        p = self.pipeline
        if isinstance(step, StageRun):
            if not (step.stage < len(p.stages) and step.microbatch < p.microbatches):
                return "FB1003"
            if step.word == "wgt" and not self._has_weights(step.stage):
                return "FB1003"
            return None if step.stage in self.mine else "FB1004"
        kind, s, k = step.value
        if s + 1 >= len(p.stages) or k >= p.microbatches:
            return "FB1003"
        if kind == "grad" and p.stages[s].gradient_bytes == 0:
            return "FB1003"
        made, read = p.stages[s].rank, p.stages[s + 1].rank
        if kind == "grad":
            made, read = read, made
        if isinstance(step, OnValue):
            return None if self.rank in (made, read) else "FB1004"
        here, there = (made, read) if step.word == "send" else (read, made)
        return None if made != read and (self.rank, step.peer) == (here, there) else "FB1004"

    def _has_weights(self, s: int) -> bool:
        """True if the stage has a third pass."""
        stage = self.pipeline.stages[s]
        return stage.weight_ns + stage.weight_keep_bytes + stage.weight_extra_bytes > 0

    def check(self) -> list[Diagnostic]:
        """All problems of this row."""
        for s in self.mine:
            words = ("fwd", "bwd", "wgt")[: 3 if self._has_weights(s) else 2]
            for word in words:
                self._check_order(word, s)
            for (before, word), k in product(pairwise(words), range(self.pipeline.microbatches)):
                first, then = self.runs.get((before, s, k)), self.runs.get((word, s, k))
                if then and (not first or then[0] < first[0]):
                    self._problem("FB1006", then[0])
        for value in self._values():
            self._check_value(value)
        return self.problems

    def _check_order(self, word: str, s: int) -> None:
        """Each micro-batch once, in ascending order."""
        places = [self.runs.get((word, s, k), []) for k in range(self.pipeline.microbatches)]
        for k, found in enumerate(places):
            if len(found) != 1:
                again = found[1] if found else None
                self._problem("FB1005", again, f": {word} {s} mb {k} runs {len(found)} times")
        for earlier, later in pairwise(places):
            if later and (not earlier or later[0] < earlier[0]):
                self._problem("FB1013", later[0])

    def _values(self) -> Iterator[Value]:
        """All that this rank ever holds."""
        p = self.pipeline
        for s in range(len(p.stages) - 1):
            if self.rank in (p.stages[s].rank, p.stages[s + 1].rank):
                for k in range(p.microbatches):
                    yield ("act", s, k)
                    if p.stages[s].gradient_bytes:
                        yield ("grad", s, k)

    def births(self, value: Value) -> list[int]:
        """Where the value comes to be here: computed or received."""
        kind, s, k = value
        maker = ("fwd", s, k) if kind == "act" else ("bwd", s + 1, k)
        received = [n for n in self.moves.get(value, ()) if self._word(n) == "recv"]
        return sorted([*self.runs.get(maker, ()), *received])

    def _word(self, n: int) -> str:
        return self.row[n].word

    def _reads(self, value: Value) -> list[int]:
        """Computations and sends that read it."""
        kind, s, k = value
        stages = self.pipeline.stages
        if kind == "grad":
            readers = [("bwd", s, k), ("wgt", s, k)]
        else:
            readers = [("fwd", s + 1, k)]
            if stages[s + 1].reads_input:
                readers += [("bwd", s + 1, k), ("wgt", s + 1, k)]
            readers += [("bwd", s, k)] if stages[s].reads_output else []
        sent = [n for n in self.moves.get(value, ()) if self._word(n) == "send"]
        return sorted([*(n for reader in readers for n in self.runs.get(reader, ())), *sent])

    def _check_value(self, value: Value) -> None:
        births, frees = self.births(value), self.frees.get(value, [])
        moves, waits = self.moves.get(value, []), self.waits.get(value, [])
        for words in ("recv", "send"):
            for n in [n for n in moves if self._word(n) == words][1:]:
                self._problem("FB1010", n)
        if len(births) > 1:
            self._problem("FB1010", births[1])
        born = births[0] if births else len(self.row)
        freed = next((n for n in frees if n > born), len(self.row))
        for n in frees:
            if n != freed:
                self._problem("FB1011", n)
        for n in self._reads(value):
            if not born < n < freed:
                self._problem("FB1006", n)
        flights = self._flights(value, moves, waits)
        for start, end in flights:
            if start < freed < min(end, len(self.row)):
                self._problem("FB1008", freed)
            if self._word(start) == "recv":
                for n in self._reads(value):
                    if start < n < end:
                        self._problem("FB1007", n)
        if births and freed == len(self.row):
            self._problem("FB1012", None, f": {value[0]} {value[1]} mb {value[2]} is never freed")

    def _flights(self, value: Value, moves: list[int], waits: list[int]) -> list[tuple[int, int]]:
        """Issue and end of each copy; FB1009 for a wait without, FB1012 for one without end."""
        flights: list[tuple[int, int]] = []
        left = list(waits)
        for n in moves:
            end = next((w for w in left if w > n), None)
            if end is None:
                self._problem("FB1012", n, ": nobody waits for it")
                flights.append((n, len(self.row)))
            else:
                left.remove(end)
                flights.append((n, end))
        for n in left:
            self._problem("FB1009", n)
        return flights

    def peak_bytes(self) -> int:
        """The largest sum of what is held, kept, alive, and taken by a step for itself."""
        p = self.pipeline
        change: Counter[int] = Counter()
        own: Counter[int] = Counter()
        for s in self.mine:
            stage = p.stages[s]
            for k in range(p.microbatches):
                (forward,), (backward,) = self.runs["fwd", s, k], self.runs["bwd", s, k]
                change[forward] += stage.keep_bytes
                change[backward + 1] -= stage.keep_bytes
                own[forward] += stage.forward_extra_bytes
                own[backward] += stage.backward_extra_bytes
                for weights in self.runs.get(("wgt", s, k), ()):
                    change[backward + 1] += stage.weight_keep_bytes
                    change[weights + 1] -= stage.weight_keep_bytes
                    own[weights] += stage.weight_extra_bytes
        for value in self._values():
            stage = p.stages[value[1]]
            size = stage.activation_bytes if value[0] == "act" else stage.gradient_bytes
            change[self.births(value)[0]] += size
            change[self.frees[value][0] + 1] -= size
        held = sum(p.stages[s].held_bytes for s in self.mine)
        levels = accumulate(change[n] for n in range(len(self.row)))
        return max([held, *(held + level + own[n] for n, level in enumerate(levels))])
