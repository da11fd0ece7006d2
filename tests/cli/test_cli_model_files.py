"""Models in Python files: what is executed, under which name, and what of it is recorded."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from helpers.cli import Cli
from remat_compile import FBError
from remat_compile.plans.source import load_source

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.a(x))

def make():
    return Net(), (torch.ones(2, 4),)
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a model can be imported from, and one here has a `json.py`: other tests start
    processes with the path that this one has."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_the_recorded_digest_is_of_the_text_that_was_executed(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    text = f"open(__file__, 'a').write('# edited while it is captured')\n{MODEL}"
    path.write_text(text)
    assert load_source(f"{path}:make").sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert path.read_text() != text


def test_a_file_with_the_name_of_a_library_does_not_take_its_place(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text(MODEL)
    source = load_source(f"{path}:make")
    assert sys.modules["json"] is json
    kind = type(source.exported.original)
    assert vars(sys.modules[kind.__module__])["Net"] is kind  # as pickling asks
    other = tmp_path / "other" / "json.py"
    other.parent.mkdir()
    other.write_text(MODEL)
    load_source(f"{other}:make")
    assert sys.modules[kind.__module__].__file__ == str(other)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("import neighbour_with_an_error\n", "neighbour_with_an_error.py:2: def ("),
        ("x = 1\ndef (\n", "net.py:2: def ("),
        ("x = '\0'\n", None),
    ],
    ids=["neighbour", "own", "no line"],
)
def test_a_syntax_error_is_shown_where_it_stands(
    tmp_path: Path, text: str, note: str | None
) -> None:
    (tmp_path / "neighbour_with_an_error.py").write_text("x = 1\ndef (\n")
    path = tmp_path / "net.py"
    path.write_text(text)
    with pytest.raises(FBError) as refused:
        load_source(f"{path}:make")
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0705"
    expected = [] if note is None else [f"{tmp_path}/{note}"]
    assert [n.message for n in diagnostic.notes] == expected


ASKS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        try:
            scale = 1.0 if x.sum().item() > 0 else 2.0
        except Exception:
            scale = 3.0
        return self.a(x) * scale

def make():
    return Net(), (torch.ones(2, 4),)
"""


def test_a_number_that_is_asked_for_inside_try_is_refused(tmp_path: Path, cli: Cli) -> None:
    """The trace raises where eager reads the number, and the model would go another way."""
    path = tmp_path / "net.py"
    path.write_text(ASKS)
    ran = cli(f"{path}:make", "-o", tmp_path / "plan.fbir", "--planner", "store-all")
    assert ran.code == 1
    assert "FB0501" in ran.err
    assert "catches the error of a trace that reads a number (net.py:12" in ran.err
    assert not (tmp_path / "plan.fbir").exists()
