"""Plans that were made before, on disk: the second start of a model plans nothing.

A plan is looked up by the graph that was captured and how its tensors lie in memory, by everything
else that planning it depends on, and by what was asked. What is found is held against the captured
graph and proven again, as a plan from any file is; costs are taken as they were measured then, on
this machine with these versions. Where a file of the cache cannot be used, planning goes on without
it, and one warning (FB0959) says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.diagnostics import Diagnostic, FBError
from ..planners.registry import format_planner
from ..version import __version__
from .bind import graph_differences
from .budget import Baseline, resolve_budget
from .files import replace_text
from .plan import Plan
from .plan_text import PlanText

if TYPE_CHECKING:
    from ..ir.program import Program
    from .request import PlanRequest

__all__ = [
    "COSTS_SUFFIX",
    "FUSED_SUFFIX",
    "PRICES_SUFFIX",
    "VARIABLE",
    "PlanCache",
    "asked_and_around",
    "cache_warning",
    "digest",
    "ensure_captured",
    "first_line",
    "key_of",
    "one_plan",
    "plan_cache",
    "plan_of",
    "proven_plan",
    "surroundings",
]

VARIABLE = "REMAT_COMPILE_CACHE"
"""The environment variable with the folder of the cache; `off` for none."""

SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "ONEDNN_MAX_CPU_ISA",
)
"""Variables that change what a computation takes, in bytes or in time."""
OF_INDUCTOR = "TORCHINDUCTOR_"
PLACES = ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS")
"""Those of Inductor's variables that change no kernel."""
FORMAT = 1
SUFFIX = ".remat-plan"
FUSED_SUFFIX = ".remat-fused"
COSTS_SUFFIX = ".remat-costs"
PRICES_SUFFIX = ".remat-prices"
SUFFIXES = (
    SUFFIX,
    FUSED_SUFFIX,
    COSTS_SUFFIX,
    PRICES_SUFFIX,
)
"""Of our files: others in the folder, which may be anybody's, are left alone."""
MOST_BYTES = 256 * 2**20
"""Of all files together; those that were used longest ago go first."""
MOST_FILE_BYTES = 64 * 2**20


def plan_cache() -> PlanCache | None:
    """The cache of this user, where the environment does not switch it off."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() in ("off", "0", "no", "false", "none"):
        return None
    if named:
        return PlanCache(Path(named).expanduser())
    try:
        return PlanCache(_usual_folder() / "remat-compile" / "plans")
    except RuntimeError:  # nobody's home
        return None


def _usual_folder() -> Path:
    """Where programs of this system keep what they can make again."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@dataclass(frozen=True)
class PlanCache:
    """One file per plan in `folder`, written whole or not at all."""

    folder: Path
    most_bytes: int = MOST_BYTES

    def key(
        self, captured: Program, request: PlanRequest, layouts: Sequence[tuple[str, str]] = ()
    ) -> str | None:
        """For the graph as it was captured, without costs, and the layouts of its tensors; None
        for a planner that has no text that says all of it, or that others wrote, and for `least`,
        which is no bound to prove. What is fused of a plan is fused of one that was made without.
        """
        asked = asked_and_around(replace(request, fuse="none"))
        return None if asked is None else key_of(captured, layouts, *asked)

    def find(
        self, key: str, captured: Program, request: PlanRequest
    ) -> tuple[Plan | None, tuple[Diagnostic, ...]]:
        """The plan, proven again; None where there is none that can be used, and a warning
        (FB0959) where what is there is no such plan."""
        path = self.path(key)
        try:
            text, bound_ns = plan_of(self.read(key))
            plan = _proven_again(text, str(path), bound_ns, captured, request)
        except FileNotFoundError:
            return None, ()
        except (OSError, ValueError, RecursionError, FBError) as error:
            message = f"{path} is not used: {first_line(error)}"
            return None, (cache_warning(message, "it is written again"),)
        return plan, ()

    def keep(self, key: str, plan: Plan) -> tuple[Diagnostic, ...]:
        """Writes a plan that was proven here, and makes room for it; FB0959 where it cannot."""
        from ..ir.text.printer import format_program

        text = format_program(plan.program)
        bound_ns = None if plan.lower_bound_s is None else round(plan.lower_bound_s * 1e9)
        held = {"sha256": digest(text), "lower_bound_ns": bound_ns, "plan": text}
        return self.hold(key, held, SUFFIX)

    def hold(self, key: str, held: Mapping[str, Any], suffix: str) -> tuple[Diagnostic, ...]:
        """Writes it; FB0959 where it cannot."""
        try:
            self.write(key, held, suffix)
        except OSError as error:
            message = f"the plan is not kept in {self.folder}: {error.strerror or error}"
            return (cache_warning(message, f"name a folder that can be written in {VARIABLE}"),)
        return ()

    def path(self, key: str, suffix: str = SUFFIX) -> Path:
        return self.folder / f"{key}{suffix}"

    def read(self, key: str, suffix: str = SUFFIX) -> dict[str, Any]:
        """What was written under `key`. ValueError for what is no such file, OSError where it
        cannot be read."""
        path = self.path(key, suffix)
        held = _read(path, key)
        with suppress(OSError):  # of another owner, on a disk that is read only, or gone by now
            os.utime(path)
        return held

    def write(self, key: str, held: Mapping[str, Any], suffix: str = SUFFIX) -> None:
        """Keeps `held`, which JSON can express, and makes room for it. OSError where it cannot."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path(key, suffix)
        # Whatever was there before, and the mask: another process may read it at once.
        replace_text(path, json.dumps({"key": key, **held}), mode=0o600)
        self._make_room()

    def _make_room(self) -> None:
        """Removes the files that were used longest ago, also what a writer left half-done."""
        entries = []
        for path in (p for suffix in SUFFIXES for p in self.folder.glob(f"*{suffix}*")):
            try:
                state = path.stat()
            except OSError:  # another process removed it
                continue
            entries.append((state.st_mtime_ns, state.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def _read(path: Path, key: str) -> dict[str, Any]:
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb") as file:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):  # a pipe would never end
            raise ValueError("it is no file")
        if hasattr(os, "getuid") and state.st_uid not in (os.getuid(), 0):
            raise ValueError("it belongs to somebody else")
        if os.name == "posix" and state.st_mode & 0o022:
            raise ValueError("others may write to it")
        if state.st_size > MOST_FILE_BYTES:
            raise ValueError(f"it has {state.st_size} bytes")
        held = json.loads(file.read(MOST_FILE_BYTES))
    match held:
        case {"key": str(named)}:
            if named != key:
                raise ValueError("it is of another plan")
            return held  # type: ignore[no-any-return]
    raise ValueError("it is no plan")


def plan_of(held: Mapping[str, Any]) -> tuple[str, int | None]:
    """The text of the plan and the bound on the time of any other."""
    match held:
        case {"sha256": str(known), "plan": str(text), "lower_bound_ns": bound}:
            if known != digest(text):
                raise ValueError("it was changed or cut short")
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise ValueError("its bound is no number")
            return text, bound
    raise ValueError("it is no plan")


def _proven_again(
    text: str, name: str, bound_ns: int | None, captured: Program, request: PlanRequest
) -> Plan:
    """As for a plan from any file: FBError where it is not one, is another, or is not proven."""
    program = one_plan(text, name)
    ensure_captured(program, captured)
    plan = proven_plan(program, text, request)
    if bound_ns is not None and not 0 <= bound_ns <= plan.trace.time_ns:
        raise ValueError("its bound is above its own time")
    return replace(plan, lower_bound_s=None if bound_ns is None else bound_ns / 1e9)


def ensure_captured(program: Program, captured: Program) -> None:
    """ValueError where the program is not of the graph that was captured."""
    if different := graph_differences(program, captured):
        raise ValueError(f"its graph is another: {different[0]}")
    # Measuring fills in the costs, and spells the version of PyTorch out, which the key has.
    was = captured.header
    if replace(program.header, costs=was.costs, torch_version=was.torch_version) != was:
        raise ValueError("its graph was captured elsewhere")


def one_plan(text: str, name: str) -> Program:
    """A program with one schedule; FBError or ValueError where a text is not one."""
    from ..ir.text.parser import parse_program

    program = parse_program(text, name)
    if len(program.schedules) != 1:
        raise ValueError(f"it holds {len(program.schedules)} schedules")
    return program


def proven_plan(program: Program, text: str, request: PlanRequest) -> Plan:
    """The plan in a program that was read from `text`, proven. FBError where it is not."""
    budget = None
    if request.budget is not None:
        budget = resolve_budget(request.budget, Baseline.of(program))
    schedule = program.schedules[0]
    return Plan(program, schedule, budget, _text=PlanText(program.graph, schedule, text)).trusted()


def asked_and_around(request: PlanRequest) -> tuple[Any, ...] | None:
    """What was asked, and what costs and plans depend on; None for a planner that has no text that
    says all of it, or that others wrote, and for `least`."""
    planner = request.planner
    ours = type(planner).__module__.startswith("remat_compile.")
    is_least = request.budget is not None and request.budget.form == "least"
    if not ours or not is_dataclass(planner) or is_least:
        return None
    asked = {f.name: repr(getattr(request, f.name)) for f in fields(request) if f.name != "planner"}
    asked["planner"] = format_planner(planner)
    return sorted(asked.items()), surroundings()


def key_of(captured: Program, layouts: Sequence[tuple[str, str]], *rest: Any) -> str:
    """For the graph as it was captured, without costs, how its tensors lie, and what else counts,
    which JSON can express."""
    from ..ir.text.printer import format_program

    what = (FORMAT, format_program(captured), layouts, *rest)
    return digest(json.dumps(what))


def surroundings() -> dict[str, Any]:
    """What costs and plans depend on beside graph and request."""
    import torch

    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "remat-compile": [__version__, _own_files()],
        "python": sys.version,
        "torch": [torch.__version__, torch.__config__.show(), torch.version.git_version],
        "machine": [platform.node(), platform.machine(), platform.processor(), _cpu(), cuda],
        "threads": torch.get_num_threads(),
        "settings": [
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.deterministic,
            {name: os.environ.get(name) for name in SETTINGS},
            _of_inductor(),
        ],
    }


def _of_inductor() -> list[tuple[str, str]]:
    """What was set for its kernels: in the environment, and in this process."""
    own = [(n, v) for n, v in os.environ.items() if n.startswith(OF_INDUCTOR) and n not in PLACES]
    if "torch._inductor.config" in sys.modules:
        from ..backends.torch.kernels import changed_settings

        own += changed_settings()
    return sorted(own)


@cache
def _own_files() -> str:
    """Tells this state of the package from another, also where it is being worked on."""
    folder = Path(__file__).parents[1]
    states = [(str(p.relative_to(folder)), p.stat()) for p in sorted(folder.rglob("*.py"))]
    return digest(repr([(name, s.st_size, s.st_mtime_ns) for name, s in states]))


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def first_line(error: BaseException) -> str:
    if isinstance(error, FBError):
        return f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def cache_warning(message: str, hint: str) -> Diagnostic:
    return Diagnostic("FB0959", f"cache of plans: {message}", hint=hint)
