"""`Plan.plot` and `Sweep.plot`: pictures that stand still."""

from __future__ import annotations

import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

import pytest

import remat_compile
from helpers.paths import ROOT
from remat_compile import FBError

OFFLOAD = ROOT / "spec/conformance/valid/offload.fbir"
DRAWS = pytest.mark.skipif(find_spec("vl_convert") is None, reason="needs the extra [report]")


@DRAWS
@pytest.mark.parametrize("name", ["memory.svg", "memory.png"])
def test_a_picture_can_be_written_over_an_earlier_one(tmp_path: Path, name: str) -> None:
    plan, path = remat_compile.load(OFFLOAD), tmp_path / name
    plan.plot(path=path)
    first = path.read_bytes()
    plan.plot("streams", path)
    assert path.read_bytes() != first
    if name.endswith("png"):
        assert chunks(first) == ["IHDR", "tEXt"]
    else:
        assert first.rstrip().endswith(b"</svg>")
        assert b"saved" in first


def chunks(png: bytes) -> list[str]:
    """The first two chunks of a PNG, their checks held against their data."""
    assert png.startswith(b"\x89PNG")
    at, names = 8, []
    for _ in range(2):
        size = int.from_bytes(png[at : at + 4])
        body = png[at + 4 : at + 8 + size]
        assert zlib.crc32(body) == int.from_bytes(png[at + 8 + size : at + 12 + size])
        names.append(body[:4].decode())
        at += 12 + size
    return names


def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, mine = remat_compile.load(OFFLOAD), tmp_path / "mine.svg"
    mine.write_text("<svg/>")
    for code, chart, name in (
        ("FB0725", "memory", "x.txt"),
        ("FB0725", "nothing", "x.svg"),
        ("FB0719", "memory", "mine.svg"),
    ):
        with pytest.raises(FBError) as caught:
            plan.plot(chart, tmp_path / name)  # type: ignore[arg-type]
        assert [d.code for d in caught.value.diagnostics] == [code]
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(FBError) as caught:
        plan.plot(path=tmp_path / "x.svg")
    assert [d.code for d in caught.value.diagnostics] == ["FB0712"]
    assert [*tmp_path.iterdir()] == [mine]
    assert mine.read_text() == "<svg/>"


@DRAWS
def test_a_frontier(tmp_path: Path) -> None:
    sweep = remat_compile.sweep(OFFLOAD, planners="store-all", budgets="100%")
    sweep.plot(tmp_path / "frontier.svg")
    assert (sweep._repr_svg_() or "").rstrip().endswith("</svg>")
    assert b"store-all" in (tmp_path / "frontier.svg").read_bytes()
