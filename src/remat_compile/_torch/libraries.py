"""Which code belongs to Python, to what is installed, or to this package; and its state on disk."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import types
from functools import cache
from pathlib import Path

import torch

__all__ = ["is_library", "is_library_module", "stamp"]


def is_library(file: str) -> bool:
    """Whether a file of code belongs to Python, to what is installed, or to this package."""
    return file.startswith(("<frozen", *_folders()))


@cache
def _folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update((*site.getsitepackages(), site.getusersitepackages()))
    folders.update(os.path.dirname(x) for x in (torch.__file__, os.__file__))
    folders.add(str(Path(__file__).parents[1]))
    real = {os.path.realpath(folder) for folder in folders if folder}
    return tuple(f"{folder}{os.sep}" for folder in sorted(folders | real) if folder)


def is_library_module(module: object) -> bool:
    if not isinstance(module, types.ModuleType):
        return False
    if module.__name__ in sys.builtin_module_names or module.__name__ == "builtins":
        return True
    file = getattr(module, "__file__", None)
    if file is not None:
        return is_library(file)
    # A package without a file of its own, or one that PyTorch makes (`torch.ops`).
    if module.__name__.partition(".")[0] == "torch":
        return True
    return any(is_library(f"{path}{os.sep}") for path in getattr(module, "__path__", ()))


@cache
def stamp(file: str) -> tuple[int, int]:
    """Tells one state of an installed file from another."""
    try:
        state = os.stat(file)
    except OSError:
        return (0, 0)
    return (state.st_size, state.st_mtime_ns)
