"""Scripts of a proof, and proofs of the scripts, in a folder that holds nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, FBError
from .files import check_writable, text_writer, write_together

if TYPE_CHECKING:
    from ...verifier import Script

OURS = re.compile(r"\d\d-[a-z-]+-part\d+\.smt2(\.alethe)?")
PROVEN_BY_CVC5 = ("values", "memory-ranges", "sizes")
"""Obligations of which cvc5 writes proofs: those with uninterpreted functions and with symbols.
The others are numerals and truth values."""


def check_folder(path: str | Path) -> None:
    """Asked before any long work: FB0703 where the folder could not be written, FB0874 where it
    holds a file that no earlier call has put there."""
    folder = Path(os.path.realpath(path)) if "\0" not in str(path) else Path(path)
    if "\0" in str(path) or not folder.exists():
        check_writable(path)
        return
    if not folder.is_dir():
        raise FBError(
            Diagnostic("FB0703", f"cannot write {path}: it is a file, not a folder"), usage=True
        )
    check_writable(folder / "01-validity-part1.smt2")
    if others := sorted(entry.name for entry in folder.iterdir() if not _is_ours(entry)):
        message = f"{path} holds {others[0]!r}, which is no script of a proof"
        hint = "name a folder that is new, empty, or has only scripts written before"
        raise FBError(Diagnostic("FB0874", message, hint=hint), usage=True)


def write_scripts(path: str | Path, scripts: Sequence[Script]) -> None:
    """One `.smt2` file per script, all of them or none; those of an earlier proof go."""
    _write_folder(path, {f"{script.name}.smt2": script.text for script in scripts})


def write_proofs(path: str | Path, scripts: Sequence[Script], time_limit_s: float) -> list[str]:
    """The scripts, and beside each that is about values or symbols and is `unsat` a proof by
    cvc5 in the Alethe format; the names of the proofs.

    FB0712 where cvc5 is missing. FB0875 where it finds no proof in time; nothing is written.
    """
    from ...verifier.answer import Deadline
    from ...verifier.proofs import prove_script

    deadline = Deadline(time_limit_s)
    files = {f"{script.name}.smt2": script.text for script in scripts}
    proofs = {}
    for script in scripts:
        if script.obligation in PROVEN_BY_CVC5 and script.status == "unsat":
            proofs[f"{script.name}.smt2.alethe"] = prove_script(script, deadline)
    _write_folder(path, {**files, **proofs})
    return list(proofs)


def _is_ours(entry: Path) -> bool:
    """Told by its name and by how it begins."""
    if entry.is_symlink() or not entry.is_file() or not OURS.fullmatch(entry.name):
        return False
    with open(entry, "rb") as file:
        return file.read(2) == b"; "


def _write_folder(path: str | Path, texts: Mapping[str, str]) -> None:
    check_folder(path)
    folder = Path(os.path.realpath(path))
    is_new = not folder.exists()
    old = [] if is_new else list(folder.iterdir())
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        raise FBError(Diagnostic("FB0703", message), usage=True) from None
    try:
        write_together({folder / name: text_writer(text) for name, text in texts.items()})
    except BaseException:
        if is_new:
            folder.rmdir()
        raise
    for entry in old:
        if entry.name not in texts:
            entry.unlink()
