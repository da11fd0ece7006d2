"""The memory snapshot: PyTorch's own reader takes it, and its bytes are the plan's."""

from __future__ import annotations

import pickle
import pickletools
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from remat_compile import load
from remat_compile.report.snapshot import snapshot
from report.test_page import hostile_subject
from report.test_reading import OFFLOAD, PLANS, subject

READABLE = re.findall(
    r"\w+",
    """PROTO FRAME STOP MARK MEMOIZE APPEND APPENDS LIST TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_TUPLE
    EMPTY_DICT EMPTY_LIST DICT SETITEM SETITEMS BINGET LONG_BINGET BINPUT LONG_BINPUT BININT
    BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE NEWTRUE NEWFALSE NONE""",
)
"""What `unpickle` in torch/utils/viz/MemoryViz.js knows."""


def read(data: bytes) -> dict[str, Any]:
    """Unpickled as the page does: nothing but dictionaries, lists, texts and numbers."""
    assert {op.name for op, _, _ in pickletools.genops(data)} <= {*READABLE}
    made: dict[str, Any] = pickle.loads(data)
    return made


@pytest.mark.parametrize("name", PLANS)
def test_the_bytes_are_those_of_the_plan(name: str) -> None:
    made = subject(name)
    data = read(snapshot(made))
    (events,) = data["device_traces"]
    now, most, held = 0, 0, {}
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in held
            held[event["addr"]] = event["size"]
            now += event["size"]
            most = max(now, most)
        elif event["action"] == "free_completed":
            assert held.pop(event["addr"]) == event["size"]
            now -= event["size"]
        else:
            assert event["action"] == "free_requested"
    assert most == made.trace.peak_bytes
    assert now == made.trace.after[-1]
    blocks = [b for b in data["segments"][0]["blocks"] if b["state"] == "active_allocated"]
    assert {b["address"]: b["size"] for b in blocks} == held
    times = [event["time_us"] for event in events]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["least", "copies", "accumulate"])
def test_nothing_overlaps(name: str) -> None:
    (events,) = read(snapshot(subject(name)))["device_traces"]
    held: dict[int, int] = {}
    for event in events:
        if event["action"] == "alloc":
            held[event["addr"]] = event["size"]
            spans = sorted((a, a + size) for a, size in held.items())
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        elif event["action"] == "free_completed":
            del held[event["addr"]]


@pytest.mark.parametrize("name", ["segments", "copies"])
def test_the_reader_of_pytorch_takes_it(name: str) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    made = subject(name)
    data = read(snapshot(made))
    held = viz.Bytes(made.trace.after[-1])
    assert f"total_allocated: {held}\n" in viz.segsum(data)
    written = viz.trace(data)
    assert written.count("# free completed") == written.count("\ndel ")
    lines = viz.memory(data, lambda text: text).splitlines()
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines if "active_allocated" in line) == sum(
        b["size"] for b in data["segments"][0]["blocks"] if b["state"] == "active_allocated"
    )
    assert "MemoryViz.js" in viz.trace_plot(data)


def test_stacks_name_tensor_step_and_line() -> None:
    (events,) = read(snapshot(subject("least")))["device_traces"]
    stacks = [[f["name"] for f in e["frames"]] for e in events if e["action"] == "alloc"]
    made = next(stack for stack in stacks if stack[0] == "%gelu")
    assert made[1].endswith(" aten.gelu.default")
    assert made[2].startswith("blocks.0")
    assert stacks[0][1] == "held by the caller"


def test_no_name_acts_in_it() -> None:
    (events,) = read(snapshot(hostile_subject()))["device_traces"]
    for frame in (frame for event in events for frame in event["frames"]):
        for text in (frame["name"], frame["filename"]):
            assert text.isprintable()
            assert len(text) < 400


def test_a_file_of_ours_may_be_written_over(tmp_path: Path) -> None:
    plan, path = load(OFFLOAD), tmp_path / "s.pickle"
    assert plan.memory_snapshot(path) == path.read_bytes() == plan.memory_snapshot(path)
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(Exception, match="FB0719"):
        plan.memory_snapshot(path)
