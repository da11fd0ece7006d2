"""Plans on disk: found again, proven again, and never believed."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError, Plan
from remat_compile.driver.make_plan import plan_source
from remat_compile.driver.model_source import Source
from remat_compile.driver.plan_cache import SETTINGS, VARIABLE, PlanCache, plan_cache
from remat_compile.driver.request import Errors, PlanRequest, read_request
from remat_compile.driver.run_planner import Phases
from remat_compile.frontends.torch_export import export, lower
from remat_compile.ir.program import Program

ROOT = Path(__file__).parents[2]


class Net(nn.Module):
    def __init__(self, depth: int = 5, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def made(model: nn.Module | None = None, **options: Any) -> Plan:
    chosen = {"activation_budget": "70%", "planner": "dtr", **options}
    x = torch.ones(32, 16)
    return remat_compile.plan(model or Net(), (x,), **chosen)


def is_from_cache(plan: Plan) -> bool:
    return "plan" not in plan.phase_s


def test_a_plan_is_made_once(folder: Path) -> None:
    first, second = made(), made()
    assert not is_from_cache(first)
    assert is_from_cache(second)
    assert "costs" not in second.phase_s
    assert second.schedule == first.schedule
    assert second.program == first.program
    assert second.budget == first.budget
    assert second.lower_bound_s == first.lower_bound_s
    assert second.proven is not None
    assert len(list(folder.glob("*.remat-plan"))) == 1


def test_a_plan_that_was_found_trains_as_eager_does(folder: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(32, 16)
    twins = copy.deepcopy(model), copy.deepcopy(model)
    for twin in twins:
        ours = remat_compile.compile(twin, (x,), activation_budget="70%", planner="dtr")
        runs = train_steps(ours, (x,)), train_steps(copy.deepcopy(model), (x,))
        assert_bit_equal(*runs)
    assert len(list(folder.glob("*.remat-plan"))) == 1


@dataclass(frozen=True)
class Known:
    """A plan with what it is looked up by."""

    captured: Program
    request: PlanRequest
    plan: Plan


@pytest.fixture(scope="module")
def known() -> Known:
    asked = wanted()
    exported = export(Net(), (torch.ones(32, 16),))
    with lower(exported) as lowered:
        captured = lowered.program
    plan = plan_source(Source(exported), replace(asked, cache=False), Phases())
    return Known(captured, asked, plan)


def wanted(**options: Any) -> PlanRequest:
    errors = Errors()
    chosen = {"activation_budget": "70%", "planner": "dtr", "costs": "measured", **options}
    asked = read_request(errors, **chosen)
    errors.raise_if_any()
    assert asked is not None
    return asked


@pytest.mark.parametrize(
    "options",
    [
        {"activation_budget": "71%"},
        {"activation_budget": None, "budget": "70%"},
        {"planner": "dtr{rounds=0}"},
        {"grads": "accumulate"},
        {"time_limit_s": 30},
        {"costs": "roofline", "device": "h200"},
        {"link": "25GB/s"},
        {"host_budget": "1GiB"},
    ],
    ids=str,
)
def test_what_is_asked_is_part_of_the_key(known: Known, options: dict[str, Any]) -> None:
    cache = PlanCache(Path())
    key = cache.key(known.captured, known.request)
    assert key == cache.key(known.captured, wanted())
    assert key != cache.key(known.captured, wanted(**options))


def test_the_graph_is_part_of_the_key(known: Known) -> None:
    cache = PlanCache(Path())
    c = known.captured.graph.cnodes[0]
    other = replace(c, call=replace(c.call, op="aten.mm.default"))
    graph = replace(known.captured.graph, cnodes=(other, *known.captured.graph.cnodes[1:]))
    changed = replace(known.captured, graph=graph)
    assert cache.key(changed, known.request) != cache.key(known.captured, known.request)


class StridedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)).square().mean()


def test_how_tensors_lie_is_part_of_the_key(folder: Path) -> None:
    """A convolution takes other bytes of workspace for the same shapes in another order."""
    x = torch.ones(4, 4, 16, 16)
    turned = x.contiguous(memory_format=torch.channels_last)
    plans = [remat_compile.plan(StridedConv(), (t,), planner="store-all") for t in (x, turned)]
    assert not any(map(is_from_cache, plans))
    assert len(list(folder.glob("*.remat-plan"))) == 2
    again = remat_compile.plan(StridedConv(), (turned,), planner="store-all")
    assert is_from_cache(again)
    assert again.peak_bytes == plans[1].peak_bytes


def test_a_planner_of_somebody_else_has_no_key(known: Known) -> None:
    class Mine(type(known.request.planner)):  # type: ignore[misc]
        pass

    asked = replace(known.request, planner=Mine())
    assert PlanCache(Path()).key(known.captured, asked) is None


def test_it_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_from_cache(made(cache=False))
    assert not folder.exists()
    monkeypatch.setenv(VARIABLE, "off")
    assert plan_cache() is None
    assert not is_from_cache(made())
    with pytest.raises(FBError) as refused:
        made(cache="no")
    assert refused.value.diagnostics[0].code == "FB0707"


def test_without_a_name_it_lies_where_caches_lie(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = plan_cache()
    assert cache is not None
    if sys.platform == "linux":
        assert cache.folder == tmp_path / "remat-compile" / "plans"


# -- files that cannot be used -----------------------------------------------------------


def rewritten(change: Callable[[dict[str, Any]], object], *, seal: bool = True) -> Any:
    def damage(path: Path) -> None:
        held = json.loads(path.read_text())
        change(held)
        if seal:
            held["sha256"] = sealed(held["plan"])
        path.write_text(json.dumps(held))

    return damage


def sealed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def drop_a_step(held: dict[str, Any]) -> None:
    """A schedule that forgets a computation, sealed as if it were right."""
    lines = held["plan"].splitlines(keepends=True)
    at = max(i for i, line in enumerate(lines) if line.strip() == "B3")
    held["plan"] = "".join(lines[:at] + lines[at + 1 :])


def of_another_graph(held: dict[str, Any]) -> None:
    held["plan"] = held["plan"].replace("aten.tanh.default", "aten.sin.default")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.write_text(""), "Expecting value"),
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-100]), ""),
    "binary": (lambda p: p.write_bytes(bytes(range(256))), ""),
    "deep": (lambda p: p.write_text("[" * 100_000), ""),
    "a list": (lambda p: p.write_text("[]"), "it is no plan"),
    "another key": (rewritten(lambda h: h.update(key="0" * 64)), "of another plan"),
    "changed": (rewritten(lambda h: h.update(plan=h["plan"] + " "), seal=False), "was changed"),
    "no text": (rewritten(lambda h: h.update(plan="nonsense")), "FB0"),
    "no valid plan": (rewritten(drop_a_step), "FB0"),
    "another graph": (rewritten(of_another_graph), "its graph is another"),
    "a bound too high": (rewritten(lambda h: h.update(lower_bound_ns=10**15)), "above its own"),
    "a bound of text": (rewritten(lambda h: h.update(lower_bound_ns="1")), "is no number"),
    "others may write": (lambda p: p.chmod(0o666), "others may write"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_cannot_be_used_is_told(known: Known, folder: Path, name: str) -> None:
    cache = PlanCache(folder)
    assert cache.keep("k", known.plan) == ()
    damage, says = DAMAGE[name]
    damage(folder / "k.remat-plan")
    plan, warned = cache.find("k", known.captured, known.request)
    assert plan is None
    (warning,) = warned
    assert warning.code == "FB0959"
    assert str(folder / "k.remat-plan") in warning.message
    assert says in warning.message
    cache.keep("k", known.plan)
    plan, warned = cache.find("k", known.captured, known.request)
    assert warned == ()
    assert plan is not None
    assert plan.schedule == known.plan.schedule


def test_a_file_that_cannot_be_used_is_written_again(folder: Path) -> None:
    made()
    (path,) = folder.glob("*.remat-plan")
    path.write_text("{")
    with pytest.warns(UserWarning, match="FB0959"):
        remat_compile.compile(Net(), (torch.ones(32, 16),), activation_budget="70%", planner="dtr")
    assert is_from_cache(made())


def test_a_folder_that_cannot_be_written(known: Known, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (warning,) = PlanCache(tmp_path / "file" / "plans").keep("k", known.plan)
    assert warning.code == "FB0959"
    assert "Not a directory" in warning.message or "exists" in warning.message


# -- several at once, and many -----------------------------------------------------------


def test_writers_and_readers_at_once(known: Known, folder: Path) -> None:
    plan = known.plan
    cache = PlanCache(folder)
    cache.keep("k", plan)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                cache.keep("k", plan)
                json.loads((folder / "k.remat-plan").read_text())
        except BaseException as error:  # for the assertion below
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [path.name for path in folder.iterdir()] == ["k.remat-plan"]


def test_what_was_used_longest_ago_goes_first(known: Known, folder: Path) -> None:
    plan = known.plan
    cache = PlanCache(folder)
    cache.keep("0", plan)
    size = (folder / "0.remat-plan").stat().st_size
    small = PlanCache(folder, most_bytes=int(2.5 * size))
    for key in ("1", "2", "3"):
        small.keep(key, plan)
    assert sorted(path.stem for path in folder.iterdir()) == ["2", "3"]


def test_files_of_others_in_the_folder_stay(known: Known, folder: Path) -> None:
    folder.mkdir()
    theirs = folder / "package.json"
    theirs.write_text("{}")
    PlanCache(folder, most_bytes=1).keep("k", known.plan)
    assert [path.name for path in folder.iterdir()] == [theirs.name]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(known: Known, folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "k.remat-plan", 0o600)
    plan, (warning,) = PlanCache(folder).find("k", known.captured, wanted())
    assert plan is None
    assert "it is no file" in warning.message


@pytest.mark.parametrize("name", SETTINGS)
def test_what_changes_costs_is_part_of_the_key(
    name: str, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = PlanCache(Path()).key(known.captured, wanted())
    monkeypatch.setenv(name, "other")
    assert PlanCache(Path()).key(known.captured, wanted()) != before


KEY = """
import sys; sys.path.insert(0, "tests")
from api.test_plan_cache import *
with lower(export(Net(), (torch.ones(32, 16),))) as lowered:
    print(PlanCache(Path()).key(lowered.program, wanted()))
"""


def test_another_process_has_the_same_key(known: Known) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    ran = subprocess.run(
        [sys.executable, "-c", KEY], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-1] == PlanCache(Path()).key(known.captured, known.request)
