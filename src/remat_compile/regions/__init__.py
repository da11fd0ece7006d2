"""`torch.compile(model, backend="remat")`: a model in regions, with Python between them."""

from __future__ import annotations

from .backend import remat
from .report import RegionReport, RegionsReport

__all__ = ["RegionReport", "RegionsReport", "remat"]
