"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from remat_compile import FBError
from remat_compile.plans.files.files import check_writable, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "p.fbir"
    for text in ("one", "two"):
        write_text(path, text)
        assert path.read_text() == text
    assert names(tmp_path) == ["p.fbir"]


def test_a_write_that_fails_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.fbir"
    write_text(path, "old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FBError, match=r"FB0703.*No space left on device"):
        write_text(path, "new" * 1000)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["p.fbir"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "p.fbir", "new")
    assert names(tmp_path) == []


def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "p.fbir", tmp_path / "link"
    mask = os.umask(0o022)
    try:
        write_text(path, "one")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o600)
    link.symlink_to(path)
    write_text(link, "two")
    assert link.is_symlink()
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_devices_are_written_to() -> None:
    write_text("/dev/null", "text")
    assert not Path("/dev/null").is_file()


def test_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_text("-", "text")
    assert capsys.readouterr().out == "text"


def test_unwritable_is_found_before_the_work(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "p.fbir"):
        with pytest.raises(FBError, match="FB0703") as caught:
            check_writable(path)
        assert caught.value.usage
    assert names(tmp_path) == []
