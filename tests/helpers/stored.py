"""Files of the store on disk, changed by a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remat_compile.plans.files.store import digest


def rewrite(folder: Path, kind: str, change: Callable[[Any], Any], *, seal: bool = True) -> Path:
    """Changes the value in the one file of a kind, by default with a digest that fits."""
    (path,) = folder.glob(f"*.remat-{kind}")
    held = json.loads(path.read_text())
    held["value"] = change(held["value"])
    if seal:
        held["sha256"] = digest(json.dumps(held["value"]))
    path.write_text(json.dumps(held))
    return path
