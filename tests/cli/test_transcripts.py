"""The command line as transcripts: what is typed, and what comes back.

`transcripts/NAME.txt` holds cases that begin with `# what is shown`, each in a folder of its own
with the `files` below, and with the plan `net.fbir` of the model in `net.py` where it names that.
Behind `$ command` stand the lines of standard output, those of standard error after `! `, and the
exit code in brackets where it is not 0. `...` stands for any lines, or within a line for any text.
Commands but `remat-compile` are of bash. `--update-golden` writes the output of cases that differ.

`transcripts/refusals.txt` has a refusal a line: code, exit code, the words, and after ` # ` a part
of the message.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import remat_compile
from helpers.cli import Cli
from helpers.paths import ROOT, fbir

FOLDER = Path(__file__).parent / "transcripts"
NINES = "9" * 5000
SYMBOLIC = fbir("cli/texts/symbolic")


MODEL = """\
import pathlib, torch
from torch import nn

pathlib.Path(__file__).with_name("LOADED").touch()

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1)), (torch.ones(2, 8),)
"""


@pytest.fixture(scope="module")
def net_plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The plan of the model, which is captured once."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "net.py").write_text(MODEL)
    remat_compile.plan(f"{folder}/net.py:make", planner="store-all").save(folder / "net.fbir")
    return (folder / "net.fbir").read_text()


@pytest.fixture
def files(chain: Path, plan_text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: graphs, plans, a model that says when it is loaded, and other files."""
    folder = chain.parent
    monkeypatch.chdir(folder)
    monkeypatch.setattr("remat_compile.report.document.vega", lambda: "/* vega */")
    (folder / "plan.fbir").write_text(plan_text)
    (folder / "b.fbir").write_text(SYMBOLIC)
    shutil.copy(ROOT / "tests/verifier/mutants/plans/gpt.fbir", folder)
    for name in ("offload", "fused"):
        shutil.copy(ROOT / f"spec/conformance/valid/{name}.fbir", folder)
    (folder / "net.py").write_text("raise RuntimeError('loaded')\n")
    (folder / "model.txt").write_text("hello")
    (folder / "bytes.fbir").write_bytes(b"\xff\xfe\x00")
    (folder / "gone.fbir").symlink_to("nowhere")
    return folder


def cases() -> Iterator[object]:
    for path in sorted(FOLDER.glob("*.txt")):
        if path.name != "refusals.txt":
            for text in re.split(r"\n(?=# )", path.read_text(encoding="utf-8")):
                title = text.partition("\n")[0].removeprefix("# ")
                yield pytest.param(path, text, id=f"{path.stem}: {title}")


@pytest.mark.parametrize(("path", "text"), cases())
def test_transcripts(
    path: Path, text: str, cli: Cli, files: Path, request: pytest.FixtureRequest
) -> None:
    if "net.fbir" in text:
        (files / "net.py").write_text(MODEL)
        (files / "net.fbir").write_text(request.getfixturevalue("net_plan"))
    head, *steps = re.split(r"(?m)^\$ ", text.rstrip("\n"))
    seen = [head]
    for step in steps:
        command, _, expected = step.partition("\n")
        said = ran(command, cli)
        is_same = re.fullmatch(pattern(expected), said)
        seen.append(f"$ {command}\n{expected if is_same else said}")
        if not request.config.getoption("--update-golden"):
            assert is_same, f"$ {command}\n{said}"
    if request.config.getoption("--update-golden"):
        whole = path.read_text(encoding="utf-8")
        path.write_text(whole.replace(text.rstrip("\n"), "".join(seen).rstrip("\n")), "utf-8")


def ran(command: str, cli: Cli) -> str:
    """Both streams and the exit code of a command, as a transcript has them."""
    if not command.startswith("remat-compile"):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        words, redirected = shlex.split(command)[1:], {}
        while len(words) > 1 and words[-2] in ("<", ">"):
            *words, sign, name = words
            redirected[sign] = name
        stdin = Path(redirected["<"]).read_text() if "<" in redirected else ""
        made = cli(*words, stdin=stdin)
        code, out, err = made.code, made.out, made.err
        if ">" in redirected:
            Path(redirected[">"]).write_text(out)
            out = ""
    lines = [*out.splitlines(), *(f"! {line}" for line in err.splitlines())]
    return "".join(f"{line.rstrip()}\n" for line in [*lines, *([f"[{code}]"] if code else [])])


def pattern(expected: str) -> str:
    """A regular expression of an expected text."""
    parts = []
    for line in expected.splitlines():
        inside = re.escape(line).replace(re.escape("..."), ".*")
        parts.append(r"(?:.*\n)*?" if line == "..." else f"{inside}\n")
    return "".join(parts)


REFUSALS = [
    line
    for line in (FOLDER / "refusals.txt").read_text(encoding="utf-8").splitlines()
    if line.startswith("FB")
]


@pytest.mark.parametrize("line", REFUSALS)
def test_refusals(line: str, cli: Cli, files: Path) -> None:
    """One message, no output, and no file is written or changed."""
    refusal, _, part = line.partition(" # ")
    codes, exit_code, *words = shlex.split(refusal)
    before = {p: p.read_bytes() for p in files.iterdir() if p.is_file()}
    made = cli(*(word.replace("NINES", NINES).replace("NUL", "\0") for word in words))
    assert (made.code, made.out) == (int(exit_code), ""), made.err
    for code in set(codes.split(",")):
        assert made.err.count(f"error[{code}]") == codes.split(",").count(code), made.err
    assert part in made.err, made.err
    assert "Traceback" not in made.err
    assert {p: p.read_bytes() for p in files.iterdir() if p.is_file()} == before
