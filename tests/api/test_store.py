"""Values on disk: read as they were put, or told that they are not."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.stored import rewrite
from remat_compile import FBError
from remat_compile.plans.files.files import check_writable, write_text
from remat_compile.plans.files.store import VARIABLE, Store, user_store

VALUE = ["a text", 7, None, {"k": [1, 2]}]


def found(folder: Path, key: str = "k") -> Any:
    return Store(folder).find("plan", key, lambda value: value)


def test_a_value_is_found_again(folder: Path) -> None:
    assert found(folder) == (None, ())
    assert Store(folder).put("plan", "k", VALUE) == ()
    assert found(folder) == (VALUE, ())
    assert found(folder, "other") == (None, ())
    assert [path.name for path in folder.iterdir()] == ["k.remat-plan"]
    assert folder.stat().st_mode & 0o077 == 0 or os.name != "posix"


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("off", "0", "No"):
        monkeypatch.setenv(VARIABLE, word)
        assert user_store() is None


def test_without_a_name_it_lies_where_caches_lie(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = user_store()
    assert store is not None
    if sys.platform == "linux":
        assert store.folder == tmp_path / "remat-compile" / "plans"


def held(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        parts = json.loads(path.read_text())
        change(parts)
        path.write_text(json.dumps(parts))

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.write_text(""), "Expecting value"),
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-10]), ""),
    "binary": (lambda p: p.write_bytes(bytes(range(256))), ""),
    "deep": (lambda p: p.write_text("[" * 100_000), ""),
    "a list": (lambda p: p.write_text("[]"), "no file of the cache"),
    "without a value": (held(lambda parts: parts.pop("value")), "no file of the cache"),
    "another key": (held(lambda parts: parts.update(key="0" * 64)), "of another key"),
    "changed": (lambda p: rewrite(p.parent, "plan", lambda v: [*v, 8], seal=False), "was changed"),
    "others may write": (lambda p: p.chmod(0o666), "others may write"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_cannot_be_used_is_told(folder: Path, name: str) -> None:
    Store(folder).put("plan", "k", VALUE)
    damage, says = DAMAGE[name]
    damage(folder / "k.remat-plan")
    value, (warning,) = found(folder)
    assert value is None
    assert warning.code == "FB0959"
    assert str(folder / "k.remat-plan") in warning.message
    assert says in warning.message
    Store(folder).put("plan", "k", VALUE)
    assert found(folder) == (VALUE, ())


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (warning,) = Store(tmp_path / "file" / "plans").put("plan", "k", VALUE)
    assert warning.code == "FB0959"
    assert "Not a directory" in warning.message or "exists" in warning.message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "k.remat-plan", 0o600)
    value, (warning,) = found(folder)
    assert value is None
    assert "it is no file" in warning.message


def test_writers_and_readers_at_once(folder: Path) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                Store(folder).put("plan", "k", [number] * 10_000)
                value = Store(folder).get("plan", "k")
                assert len(value) == 10_000
                assert len(set(value)) == 1
        except BaseException as error:  # for the assertion below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [path.name for path in folder.iterdir()] == ["k.remat-plan"]


def test_what_was_used_longest_ago_goes_first(folder: Path) -> None:
    Store(folder).put("plan", "0", VALUE)
    size = (folder / "0.remat-plan").stat().st_size
    small = Store(folder, most_bytes=int(2.5 * size))
    for key in ("1", "2", "3"):
        small.put("plan", key, VALUE)
    assert sorted(path.stem for path in folder.iterdir()) == ["2", "3"]


def test_files_of_others_in_the_folder_stay(folder: Path) -> None:
    folder.mkdir()
    theirs = folder / "package.json"
    theirs.write_text("{}")
    Store(folder, most_bytes=1).put("plan", "k", VALUE)
    assert [path.name for path in folder.iterdir()] == [theirs.name]


# -- Files are written whole or not at all ---------------------------------------------------------


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
