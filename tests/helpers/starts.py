"""A small model that is started again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import remat_compile
from remat_compile.driver.start.entry import SUFFIX

__all__ = ["Net", "compiled", "edit", "entry"]


class Net(nn.Module):
    def __init__(self, depth: int = 4, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale
        return x


def compiled(model: nn.Module, *args: Any, **options: Any) -> Any:
    chosen = {"activation_budget": "70%", "planner": "dtr", **options}
    return remat_compile.compile(model, args or (torch.ones(16, 8),), **chosen)


def entry(folder: Path) -> Path:
    (path,) = folder.glob(f"*{SUFFIX}")
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The file with another content, and a digest that fits."""
    held = json.loads(path.read_text())
    start = json.loads(held["start"])
    change(start)
    held["start"] = json.dumps(start)
    held["sha256"] = hashlib.sha256(held["start"].encode()).hexdigest()
    path.write_text(json.dumps(held))
    path.chmod(0o600)
