"""The page: its numbers are the plan's, and no text of a plan can act in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import remat_compile
from helpers.cli import chain_text
from helpers.clock import HANGS_S
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import ANode, CNode, Ref
from remat_compile.ir.schedule import Compute, Schedule
from remat_compile.ir.span import Loc
from remat_compile.ir.text.parser import parse_program
from remat_compile.plans.files.look import read_plan, read_subject
from remat_compile.report import library
from remat_compile.report.dot import dot
from remat_compile.report.moments import KINDS
from remat_compile.report.notebook import summary_html
from remat_compile.report.page import page
from remat_compile.report.subject import Subject, store_all
from remat_compile.report.trace import MeasuredStep, trace_json

ROOT = Path(__file__).parents[2]
GPT = ROOT / "tests/verifier/mutants/plans/gpt.fbir"
OFFLOAD = ROOT / "spec/conformance/valid/offload.fbir"
HOSTILE = (
    "</script><script>bad()</script><img src=x onerror=bad()>\"'`${bad()}&lt;\\\\",
    "\x1b]0;x\x07\u202e\u2066\u200b\u2028\x00",
    "<!--<script>" + "N" * 10_000,
)


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The charts' library is large and slow to put together, and of no interest to these tests."""
    monkeypatch.setattr("remat_compile.report.document.vega", lambda: "/* vega */")


class Reader(HTMLParser):
    """The elements of a page, their attributes, and the text outside of scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.inside: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.text.append(data)
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def data_of(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def values(data: dict[str, Any], chart: str) -> list[dict[str, Any]]:
    """The rows of a chart, of its first layer where it has several."""
    spec = data["charts"][chart]
    rows: list[dict[str, Any]] = spec.get("layer", [spec])[0]["data"]["values"]
    return rows


@pytest.mark.parametrize(("path", "name"), [(GPT, "least"), (OFFLOAD, "one_stream")])
def test_the_numbers_of_the_page_are_those_of_the_plan(path: Path, name: str) -> None:
    plan = remat_compile.load(path, name)
    text = plan.report()
    data, reader = data_of(text), read(text)
    assert data["peak_bytes"] == plan.peak_bytes
    assert data["time_ns"] == plan.trace.time_ns
    for step, total, _, _, kinds, _ in data["moments"]:
        assert total == sum(kinds) == plan.trace.during[step - 1]
    assert max(m[1] for m in data["moments"]) == plan.peak_bytes
    # What is drawn is the same: rectangles stand on each other, without a gap.
    stacks: dict[float, list[tuple[int, int]]] = {}
    for row in values(data, "memory"):
        stacks.setdefault(row["x"], []).append((row["y"], row["y2"]))
    for stack in stacks.values():
        assert [low for low, _ in stack] == [0, *(high for _, high in stack[:-1])]
    assert max(stack[-1][1] for stack in stacks.values()) == plan.peak_bytes
    drawn = sum(r["x2"] - r["x"] for r in values(data, "streams") if r["lane"] == "compute")
    assert drawn == pytest.approx(plan.trace.time_ns / 1e6)
    # And so are the tables.
    rows = {row[0]: row for row in reader.rows if row}
    assert f"({plan.peak_bytes})" in rows["device memory"][1]
    assert f"({plan.baseline.peak_bytes})" in rows["device memory"][2]
    assert f"({plan.activation_peak_bytes})" in rows["activations"][1]
    kinds = {row[0]: int(row[1]) for row in reader.rows if len(row) == 3 and row[0] in KINDS}
    assert sum(kinds.values()) == plan.peak_bytes
    filled = {row[0]: row[1:3] for row in reader.rows if len(row) == 4}
    for kind, *sizes in (row[:3] for row in plan.fit().table()[1:]):
        assert filled[kind] == sizes or kind == "activations"  # named again, below
    for size in dict(plan.trace.live_at(plan.trace.peak_step)[:20]).values():
        assert any(str(size) in row[1:2] for row in reader.rows)


def test_budget_and_proven_peak_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "chain.fbir"
    path.write_text(chain_text(4))
    made = remat_compile.plan(path, budget="90%", planner="dtr")
    made.save(path)
    bound = made.trusted().proven
    assert made.budget is not None
    assert bound is not None
    for plan in (made.trusted(), remat_compile.load(path)):
        layers = data_of(plan.report())["charts"]["memory"]["layer"]
        lines = {row["line"].split()[0]: row["bytes"] for row in layers[2]["data"]["values"]}
        assert lines == {"proven": bound.device_bytes, "budget": made.budget.bytes}


def test_recomputation_is_listed_and_drawn() -> None:
    text = page(read_plan(GPT, "least")._subject)
    rows = {row[0]: row for row in read(text).rows if row}
    assert rows["F7"][1:3] == ["aten.addmm.default", "4"]
    assert any(row["role"] == "recomputed" for row in values(data_of(text), "streams"))
    assert any(row["held"] == "recomputed" for row in values(data_of(text), "lives"))


def hostile_subject() -> Subject:
    """A graph whose every name holds markup, controls or 10 000 letters."""
    program = parse_program(chain_text(3), "x")
    graph = program.graph
    names = {a.name: f"{a.name}{HOSTILE[i % 3]}" for i, a in enumerate(graph.anodes)}
    calls = {c.name: f"{c.name}{HOSTILE[i % 3]}" for i, c in enumerate(graph.cnodes)}

    def anode(a: ANode) -> ANode:
        return replace(a, name=names[a.name])

    def cnode(c: CNode) -> CNode:
        refs = tuple(Ref(names[name]) for name in c.call.refs())
        op = "loss" if c.is_loss else f"op{HOSTILE[0]}"
        writes = tuple(names[w] for w in c.writes if w is not None)
        place = Loc(f"m{HOSTILE[1]}.py", 3, f"top{HOSTILE[0]}.{HOSTILE[2]}")
        of = tuple(calls[name] for name in c.of)
        call = replace(c.call, op=op, args=refs)
        return replace(c, name=calls[c.name], call=call, writes=writes, loc=place, of=of)

    hostile = replace(
        graph,
        name=HOSTILE[0],
        anodes=tuple(map(anode, graph.anodes)),
        cnodes=tuple(map(cnode, graph.cnodes)),
    )
    header = replace(program.header, device=HOSTILE[0], costs="measured")
    bound = type(program.binding)()
    program = replace(program, graph=hostile, header=header, binding=bound)
    plan = store_all(program)
    first = next(s for s in plan.steps if isinstance(s, Compute))
    again = (plan.steps[0], first, *plan.steps[1:])
    return Subject(program, Schedule(HOSTILE[1], HOSTILE[0], again), assuming=HOSTILE)


def test_no_text_of_a_plan_acts_in_the_page() -> None:
    text = page(hostile_subject())
    reader = read(text)
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert not any(key.startswith("on") for _, attrs in reader.tags for key in attrs)
    assert any("</script><script>bad()" in part for part in reader.text)  # as text, it is there
    for character in ("\x1b", "\u202e", "\u2066", "\u200b", "\u2028", "\x00"):
        assert character not in text
    assert "N" * 500 not in text
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(data)
    assert data_of(text)["peak_bytes"] == hostile_subject().trace.peak_bytes


def test_the_page_reaches_for_nothing_outside() -> None:
    text = page(read_plan(OFFLOAD)._subject)
    policies = [a for t, a in read(text).tags if t == "meta" and "http-equiv" in a]
    assert "default-src 'none'" in str(policies[0]["content"])
    for tag, attrs in read(text).tags:
        assert "src" not in attrs, tag
        link = attrs.get("href")
        assert link is None or link.startswith(("#", "data:")), link


def test_the_page_is_used_by_keyboard() -> None:
    reader = read(page(read_plan(GPT, "least")._subject))
    tags = [tag for tag, _ in reader.tags]
    assert "summary" in tags
    sliders = [a for t, a in reader.tags if t == "input"]
    assert [a["type"] for a in sliders] == ["range"]
    assert [a for t, a in reader.tags if t == "label" and a.get("for") == sliders[0]["id"]]
    charts = [a for _, a in reader.tags if (a.get("class") or "") == "chart"]
    assert len(charts) == 4
    assert all(a["role"] == "img" and a["aria-label"] for a in charts)


def test_what_a_plan_lacks_is_said(tmp_path: Path) -> None:
    path = tmp_path / "bare.fbir"
    path.write_text(re.sub(r" time \d+us", "", chain_text(3)))
    text = "".join(read(page(read_subject(path)[0])).text)
    assert "The file holds no schedule" in text
    assert "The plan holds no times" in text
    assert "nothing is recorded as proven" in text
    assert "does not say where its costs come from" in text


def test_many_steps_are_drawn_as_few() -> None:
    text = page(_long(5_000))
    data = data_of(text)
    assert len(data["moments"]) <= 701
    assert len(values(data, "streams")) <= 1400
    assert len(text) < 3_000_000


def _long(count: int) -> Subject:
    program = parse_program(chain_text(20), "x")
    steps = store_all(program).steps
    loss = next(i for i, s in enumerate(steps) if isinstance(s, Compute) and s.cnode == "L")
    again = tuple(Compute(f"F{i % 20}") for i in range(count))
    return Subject(program, Schedule("long", "", (*steps[:loss], *again, *steps[loss:])))


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(library, "import_module", missing)
    with pytest.raises(FBError, match=r"FB0712.*vl-convert") as refused:
        library.vega()
    assert refused.value.diagnostics[0].hint == 'pip install "remat-compile[report]"'
    # A notebook shows what it can without.
    assert "<svg" not in summary_html(read_plan(OFFLOAD)._subject, "p")


def test_notebooks_show_escaped_text() -> None:
    pytest.importorskip("vl_convert")
    shown = summary_html(read_plan(OFFLOAD)._subject, HOSTILE[0])
    assert "<script" not in shown
    assert "<svg" in shown
    assert "384 B" in shown


def test_a_trace_keeps_to_its_format() -> None:
    subject = read_plan(OFFLOAD, "one_stream")._subject
    trace = json.loads(trace_json(subject))
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "C"}
    for event in events:
        assert {"name", "ph", "pid", "args"} <= event.keys()
        if event["ph"] == "X":
            assert event["dur"] >= 0 <= event["ts"]
            assert event["tid"] in (1, 2, 3)
        if event["ph"] == "C":
            assert all(isinstance(n, int) for n in event["args"].values())
    device = [sum(e["args"].values()) for e in events if e["name"] == "device bytes"]
    assert device == list(subject.trace.during)
    host = [e["args"]["copies"] for e in events if e["name"] == "host bytes"]
    assert host == list(subject.trace.during_host)
    busy = sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == 1)
    assert busy * 1000 == pytest.approx(subject.trace.time_ns)


def test_no_text_acts_in_a_trace_or_a_graph() -> None:
    subject = hostile_subject()
    steps = [run.step for run in subject.timeline.runs]
    trace = trace_json(subject, [MeasuredStep(step, step, 1, 2) for step in steps])
    measured = [e for e in json.loads(trace)["traceEvents"] if e["pid"] == 2 and e["ph"] == "X"]
    assert len(measured) == len(steps) > 0
    assert trace.isascii()
    assert max(len(str(e["name"])) for e in json.loads(trace)["traceEvents"]) < 300
    graph = dot(subject)
    for line in graph.splitlines():
        assert line.isprintable()
        quotes = re.sub(r"\\\\|\\\"", "", line)
        assert quotes.count('"') % 2 == 0, line
        inside = re.sub(r'"[^"]*"', '""', quotes)
        assert "<" not in inside, line
    assert "N" * 300 not in graph


def test_a_graph_has_every_computation_and_its_inputs() -> None:
    subject = read_plan(OFFLOAD, "one_stream")._subject
    lines = dot(subject).splitlines()
    boxes = [line for line in lines if re.match(r"  c\d+ \[", line)]
    assert len(boxes) == len(subject.program.graph.cnodes)
    assert any("%a 128 B" in line and "->" in line for line in lines)
    if shutil.which("dot"):
        ran = subprocess.run(["dot", "-Tsvg"], input="\n".join(lines), text=True, check=False)
        assert ran.returncode == 0


def _browser() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(_browser() is None, reason="no headless browser")
def test_a_browser_draws_it_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vl_convert")
    monkeypatch.setattr("remat_compile.report.document.vega", library.vega)
    path = tmp_path / "page.html"
    path.write_text(page(hostile_subject()), encoding="utf-8")
    browser = _browser()
    assert browser is not None
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000"]
    command += ["--enable-logging=stderr", "--dump-dom", path.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert 'data-drawn="yes"' in ran.stdout
    assert ran.stdout.count("<canvas") == 4
    assert "CONSOLE" not in ran.stderr, ran.stderr


def test_the_script_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        __version__ = "1"

        @staticmethod
        def javascript_bundle() -> str:
            return "x = '</script>'"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "import_module", lambda name: Package)
    first = library.vega()
    assert "</script" not in first
    assert [p.read_text() for p in (tmp_path / "remat-compile").iterdir()] == [first]
    (tmp_path / "remat-compile" / "vega-of-vl-convert-1.js").write_text("kept")
    assert library.vega() == "kept"
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    assert library.vega() == first
