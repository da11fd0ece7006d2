"""A small pipeline as text, broken ones, and random changes of rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_compile.ir.pipeline import Move, OnValue, Pipeline, RowStep, StageRun

RIGHT = """\
pipeline 1 by "by hand"
microbatches 2
link 1000000000
budget 139
stage 0 on 0 layers 0..2 fwd 10ns bwd 20ns held 50 keep 30 extra 3 5 crosses 8 8
stage 1 on 1 layers 2..5 fwd 10ns bwd 20ns held 60 keep 20 extra 0 7 crosses 0 0 reads input
claims period 46ns makespan 122ns peaks 139 103
row 0
  fwd 0 mb 0
  send act 0 to 1 mb 0
  recv grad 0 from 1 mb 0
  fwd 0 mb 1
  wait act 0 mb 0
  free act 0 mb 0
  send act 0 to 1 mb 1
  recv grad 0 from 1 mb 1
  wait grad 0 mb 0
  bwd 0 mb 0
  free grad 0 mb 0
  wait act 0 mb 1
  free act 0 mb 1
  wait grad 0 mb 1
  bwd 0 mb 1
  free grad 0 mb 1
row 1
  recv act 0 from 0 mb 0
  wait act 0 mb 0
  fwd 1 mb 0
  bwd 1 mb 0
  send grad 0 to 0 mb 0
  free act 0 mb 0
  recv act 0 from 0 mb 1
  wait grad 0 mb 0
  free grad 0 mb 0
  wait act 0 mb 1
  fwd 1 mb 1
  bwd 1 mb 1
  free act 0 mb 1
  send grad 0 to 0 mb 1
  wait grad 0 mb 1
  free grad 0 mb 1
"""

ROUND = """\
pipeline 1 by "by hand"
microbatches 1
stage 0 on 0 layers 0..1 fwd 1ns bwd 1ns held 0 keep 1 extra 0 0 crosses 1 0
stage 1 on 1 layers 1..2 fwd 1ns bwd 1ns held 0 keep 1 extra 0 0 crosses 1 0
stage 2 on 2 layers 2..3 fwd 1ns bwd 1ns held 0 keep 1 extra 0 0 crosses 1 0
stage 3 on 0 layers 3..4 fwd 1ns bwd 1ns held 0 keep 1 extra 0 0 crosses 0 0
row 0
  # posted before it sends what comes round to it
  recv act 2 from 2 mb 0
  fwd 0 mb 0
  send act 0 to 1 mb 0
  wait act 0 mb 0
  free act 0 mb 0
  wait act 2 mb 0
  fwd 3 mb 0
  free act 2 mb 0
  bwd 3 mb 0
  bwd 0 mb 0
row 1
  recv act 0 from 0 mb 0
  wait act 0 mb 0
  fwd 1 mb 0
  free act 0 mb 0
  send act 1 to 2 mb 0
  wait act 1 mb 0
  free act 1 mb 0
  bwd 1 mb 0
row 2
  recv act 1 from 1 mb 0
  wait act 1 mb 0
  fwd 2 mb 0
  free act 1 mb 0
  send act 2 to 0 mb 0
  wait act 2 mb 0
  free act 2 mb 0
  bwd 2 mb 0
"""
"""Right, but not if a `recv` held up its rank until the copy has ended."""

LATER = (
    RIGHT.replace("reads input\n", "reads input wgt 4ns keep 9 extra 3\n")
    .replace("  free act 0 mb 0\n  recv act 0 from 0 mb 1\n", "  recv act 0 from 0 mb 1\n")
    .replace("  fwd 1 mb 1\n", "  wgt 1 mb 0\n  free act 0 mb 0\n  fwd 1 mb 1\n")
    .replace("  bwd 1 mb 1\n  free act", "  bwd 1 mb 1\n  wgt 1 mb 1\n  free act")
    .replace("period 46ns makespan 122ns", "period 54ns makespan 130ns")
)
"""`RIGHT`, with gradients of parameters of stage 1 in a pass of their own."""

SUMS = (
    RIGHT.replace("budget 139\n", "budget 139\nmessages 3\n")
    .replace(
        "held 50 keep 30 extra 3 5 crosses 8 8",
        "held 38 keep 30 extra 3 5 crosses 8 8 sums 12 first 9",
    )
    .replace("reads input\n", "reads input closing 50\n")
    .replace("peaks 139 103", "peaks 131 110")
)
"""`RIGHT`, with sums of gradients that begin in the first backward, and bytes behind the rows."""

LATE_SUMS = LATER.replace("keep 9 extra 3", "keep 9 extra 3 begins 30 first 20").replace(
    "peaks 139 103", "peaks 139 133"
)
"""`LATER`, with sums that begin in the first pass of gradients of parameters."""


@dataclass(frozen=True)
class Break:
    """A change of the text that breaks one rule: the n-th place of `old` becomes `new`."""

    name: str
    code: str
    old: str
    new: str
    place: int = 0
    text: str = RIGHT

    def apply(self) -> str:
        parts = self.text.split(self.old)
        assert len(parts) > self.place + 1, f"{self.name}: no {self.old!r}"
        head = self.old.join(parts[: self.place + 1])
        return head + self.new + self.old.join(parts[self.place + 1 :])


_SENT = "  fwd 0 mb 0\n  send act 0 to 1 mb 0\n  wait act 0 mb 0\n  free act 0 mb 0\n"

BREAKS: Sequence[Break] = (
    Break("stages overlap", "FB1002", "layers 2..5", "layers 1..5"),
    Break("a stage on a rank without a row", "FB1002", "stage 1 on 1", "stage 1 on 2"),
    Break("crosses behind the last", "FB1002", "crosses 0 0", "crosses 8 8"),
    Break("unknown stage", "FB1003", "fwd 0 mb 1", "fwd 2 mb 1"),
    Break("unknown micro-batch", "FB1003", "fwd 0 mb 1", "fwd 0 mb 2"),
    Break("unknown value", "FB1003", "wait act 0 mb 0", "wait act 1 mb 0"),
    Break("the other rank's stage", "FB1004", "fwd 0 mb 1", "fwd 1 mb 1"),
    Break("send to itself", "FB1004", "send act 0 to 1 mb 0", "send act 0 to 0 mb 0"),
    Break("send by the reader", "FB1004", "recv grad 0 from 1 mb 0", "send grad 0 to 1 mb 0"),
    Break("backward without a forward", "FB1006", "  fwd 1 mb 1\n  bwd 1", "  bwd 1"),
    Break("backward runs twice", "FB1005", "  bwd 0 mb 1\n", "  bwd 0 mb 1\n  bwd 0 mb 1\n"),
    Break("backward never runs", "FB1005", "  bwd 0 mb 1\n", ""),
    Break("backward before its forward", "FB1006", "fwd 1 mb 0\n  bwd 1 mb 0",
          "bwd 1 mb 0\n  fwd 1 mb 0"),
    Break("freed before the backward reads it", "FB1006", "  bwd 1 mb 1\n  free act 0 mb 1\n",
          "  free act 0 mb 1\n  bwd 1 mb 1\n"),
    Break("sent before it is made", "FB1006", "  fwd 0 mb 0\n  send act 0 to 1 mb 0\n",
          "  send act 0 to 1 mb 0\n  fwd 0 mb 0\n"),
    Break("read without a wait", "FB1007", "  wait act 0 mb 0\n  fwd 1 mb 0\n",
          "  fwd 1 mb 0\n  wait act 0 mb 0\n"),
    Break("freed in flight", "FB1008", "  wait act 0 mb 0\n  free act 0 mb 0\n",
          "  free act 0 mb 0\n  wait act 0 mb 0\n"),
    Break("waited twice", "FB1009", "  wait grad 0 mb 0\n", "  wait grad 0 mb 0\n" * 2),
    Break("sent twice", "FB1010", "  send act 0 to 1 mb 1\n", "  send act 0 to 1 mb 1\n" * 2),
    Break("received twice", "FB1010", "  recv act 0 from 0 mb 1\n",
          "  recv act 0 from 0 mb 1\n" * 2),
    Break("freed twice", "FB1011", "  free act 0 mb 0\n", "  free act 0 mb 0\n" * 2),
    Break("freed before it is received", "FB1011", "  recv act 0 from 0 mb 1\n",
          "  free act 0 mb 1\n  recv act 0 from 0 mb 1\n"),
    Break("never freed", "FB1012", "  free grad 0 mb 1\n", ""),
    Break("never waited for", "FB1012", "  wait act 0 mb 1\n  free act 0 mb 1\n", ""),
    Break("micro-batches out of order", "FB1013", "fwd 0 mb 0\n", "fwd 0 mb 1\n"),
    Break("a recv that nobody sends", "FB1014",
          "  send grad 0 to 0 mb 1\n  wait grad 0 mb 1\n", ""),
    Break("copies of a pair out of order", "FB1015",
          "  recv grad 0 from 1 mb 0\n  fwd 0 mb 1\n  wait act 0 mb 0\n  free act 0 mb 0\n"
          "  send act 0 to 1 mb 1\n",
          "  fwd 0 mb 1\n  wait act 0 mb 0\n  free act 0 mb 0\n"
          "  send act 0 to 1 mb 1\n  recv grad 0 from 1 mb 0\n"),
    Break("each waits for the next", "FB1016", f"{_SENT}  wait act 2 mb 0\n",
          f"  wait act 2 mb 0\n{_SENT}", text=ROUND),
    Break("gradients of parameters before their backward", "FB1006",
          "  bwd 1 mb 1\n  wgt 1 mb 1\n", "  wgt 1 mb 1\n  bwd 1 mb 1\n", text=LATER),
    Break("gradients of parameters never made", "FB1005", "  wgt 1 mb 1\n", "", text=LATER),
    Break("gradients of parameters out of order", "FB1013", "wgt 1 mb 0", "wgt 1 mb 1", text=LATER),
    Break("gradients of parameters of a stage without", "FB1003", "  fwd 0 mb 1\n",
          "  fwd 0 mb 1\n  wgt 0 mb 0\n", text=LATER),
    Break("freed before gradients of parameters read it", "FB1006",
          "  wgt 1 mb 1\n  free act 0 mb 1\n", "  free act 0 mb 1\n  wgt 1 mb 1\n", text=LATER),
    Break("bytes kept for gradients of parameters", "FB1018", "keep 9", "keep 30", text=LATER),
    Break("bytes of late sums", "FB1018", "begins 30", "begins 31", text=LATE_SUMS),
    Break("bytes of the first late pass", "FB1018", "first 20", "first 51", text=LATE_SUMS),
    Break("bytes of sums", "FB1018", "sums 12", "sums 40", text=SUMS),
    Break("bytes of the first backward", "FB1018", "first 9", "first 10", text=SUMS),
    Break("bytes behind a row", "FB1018", "closing 50", "closing 51", text=SUMS),
    Break("bytes of messages", "FB1018", "messages 3", "messages 51", text=SUMS),
    Break("bytes before a row", "FB1018", "messages 3\n", "messages 3\ndraws 51\n", text=SUMS),
    Break("over the budget behind a row", "FB1017", "budget 139", "budget 109",
          text=SUMS.replace("peaks 131", "peaks 109").replace("keep 30", "keep 19")),
    Break("over the budget", "FB1017", "budget 139", "budget 138"),
    Break("another peak", "FB1018", "peaks 139 103", "peaks 139 102"),
    Break("another makespan", "FB1018", "makespan 122ns", "makespan 121ns"),
    Break("another period", "FB1018", "period 46ns", "period 45ns"),
)  # fmt: skip


def changed(rng: random.Random, pipeline: Pipeline) -> Pipeline:
    """One step of one row dropped, doubled, moved, swapped, renumbered, or in another row; a copy
    waited for at once, or not issued on one side."""
    rows = [list(row) for row in pipeline.rows]
    rank = rng.choice([rank for rank, row in enumerate(rows) if len(row) > 1])
    row = rows[rank]
    n, other = rng.sample(range(len(row)), 2)
    kind = rng.choice(("drop", "double", "move", "swap", "number", "rank", "hasty", "silent"))
    if kind == "drop":
        del row[n]
    elif kind == "double":
        row.insert(other, row[n])
    elif kind == "move":
        row.insert(other, row.pop(n))
    elif kind == "swap":
        row[n], row[other] = row[other], row[n]
    elif kind in ("hasty", "silent"):
        moves = [step for step in row if isinstance(step, Move)]
        if not moves:
            return pipeline
        move = rng.choice(moves)
        wait = next(step for step in row if step == OnValue("wait", move.value))
        row.remove(wait)
        if kind == "hasty":
            row.insert(row.index(move) + 1, wait)
        else:
            row.remove(move)
    elif kind == "number":
        row[n] = _renumbered(rng, row[n])
    else:
        rng.choice(rows).append(row.pop(n))
    return replace(pipeline, rows=tuple(map(tuple, rows)), claims=None)


def _renumbered(rng: random.Random, step: RowStep) -> RowStep:
    more = rng.choice((-1, 1))
    if isinstance(step, StageRun):
        if rng.random() < 0.3:
            return replace(step, word=rng.choice(("fwd", "bwd", "wgt")))
        if rng.random() < 0.5:
            return replace(step, stage=max(0, step.stage + more))
        return replace(step, microbatch=max(0, step.microbatch + more))
    kind, stage, k = step.value
    if isinstance(step, Move) and rng.random() < 0.3:
        return replace(step, peer=max(0, step.peer + more))
    value = rng.choice(
        ((kind, max(0, stage + more), k), (kind, stage, max(0, k + more)), (_other(kind), stage, k))
    )
    assert isinstance(step, Move | OnValue)
    return replace(step, value=value)  # type: ignore[arg-type]


def _other(kind: str) -> str:
    return "grad" if kind == "act" else "act"
