"""Vega, which draws the charts, as one script to put into a page."""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..ir.diagnostics import Diagnostic, FBError


def converter() -> ModuleType:
    """The package that holds Vega. FB0712 where it is missing."""
    try:
        return import_module("vl_convert")
    except ImportError as error:
        message = f"this needs vl-convert-python, which cannot be imported ({error})"
        hint = 'pip install "remat-compile[report]"'
        raise FBError(Diagnostic("FB0712", message, hint=hint)) from None


def vega() -> str:
    """Vega, Vega-Lite and their embedding, which end no script element. FB0712.

    Putting them together takes seconds, so the script is kept in the user's folder of caches
    by the version of the package, where that can be written.
    """
    package = converter()
    kept = _folder() / f"vega-of-vl-convert-{package.__version__}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        script = str(package.javascript_bundle()).replace("</script", "<\\/script")
    _keep(kept, script)
    return script


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "remat-compile"


def _keep(path: Path, script: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        os.replace(aside, path)
    except OSError:
        return  # a page is made without it all the same
