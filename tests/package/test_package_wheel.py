"""The wheel: every module is in it, and it works where nothing else of ours is."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement

from helpers.cli import chain_text

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)]
    builders = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    if all(map(is_here, map(Requirement, builders))):
        command.append("--no-isolation")  # an environment to build in takes seconds to fill
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "wheel.lock"):  # every worker of pytest builds one in there
        shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # setuptools keeps what is gone
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (built,) = out.glob("*.whl")
    return built


def is_here(wanted: Requirement) -> bool:
    with suppress(PackageNotFoundError):
        return distribution(wanted.name).version in wanted.specifier
    return False


@pytest.fixture(
    scope="module", params=["linked", pytest.param("installed", marks=pytest.mark.slow)]
)
def clean(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A virtual environment with the wheel and its own dependencies; without torch. They are
    links to those that are here, or installed as a user does it."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    into = ["--python", str(folder / "bin" / "python")]
    command = [sys.executable, "-m", "pip", *into, "install", "-q", "--no-compile"]
    if request.param == "installed":
        command += ["-c", str(ROOT / "constraints.txt")]
    else:
        link_dependencies(wheel, folder)
        command += ["--no-deps", "--no-index"]
    ran = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder / "bin"


def link_dependencies(wheel: Path, venv: Path) -> None:
    """What the wheel requires, with all that this requires: nothing else can be imported."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        read = email.message_from_bytes(archive.read(metadata))
    (site,) = venv.glob("lib/python*/site-packages")
    open_names, seen = required(read.get_all("Requires-Dist")), set[str]()
    while open_names:
        name = open_names.pop()
        if name in seen:
            continue
        seen.add(name)
        package = distribution(name)
        open_names |= required(package.requires)
        for top in {Path(file).parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(package.locate_file(top))  # type: ignore[arg-type]


def required(lines: list[str] | None) -> set[str]:
    """Names of what must be there on this machine, without any extra."""
    requirements = map(Requirement, lines or ())
    return {r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}


def run(command: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(command), *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_wheel_holds_every_file(wheel: Path) -> None:
    suffixes = {".py", ".lark", ".smt2", ".toml", ".typed", ".css", ".js", ".json"}
    wanted = {
        str(path.relative_to(SOURCE))
        for path in (SOURCE / "remat_compile").rglob("*")
        if path.suffix in suffixes
    } | {"remat_compile/py.typed"}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert wanted - held == set()
    assert any(name.endswith(".lark") for name in wanted)
    assert any(name.endswith(".smt2") for name in wanted)
    assert any(name.endswith(".toml") for name in wanted)
    assert any("licenses/LICENSE" in name for name in held)
    assert {name.split("/")[0] for name in held if "dist-info" not in name} == {"remat_compile"}


def test_clean_environment_plans_and_proves_without_torch(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "chain.fbir").write_text(chain_text())
    command = clean / "remat-compile"
    words = ["chain.fbir", "-o", "plan.fbir", "--activation-budget", "70%", "--device", "h200"]
    ran = run(command, *words, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert run(command, "verify", "plan.fbir", cwd=tmp_path).returncode == 0
    assert run(command, "show", "plan.fbir", cwd=tmp_path).returncode == 0
    assert run(command, "planners", cwd=tmp_path).returncode == 0


def test_clean_environment_says_what_is_missing(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make(): pass")
    ran = run(clean / "remat-compile", "net.py:make", cwd=tmp_path)
    assert ran.returncode == 1
    assert "error[FB0712]" in ran.stderr
    assert 'pip install "remat-compile[torch]"' in ran.stderr


def test_every_module_that_needs_no_framework_imports(clean: Path, tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, remat_compile
for found in pkgutil.walk_packages(remat_compile.__path__, "remat_compile."):
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        print(error.name.split(".")[0])
"""
    ran = run(clean / "python", "-c", code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stdout.split()) <= {"torch", "onnx", "jax", "ml_dtypes"}
