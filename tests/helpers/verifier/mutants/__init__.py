"""Seeded faults in correct plans of real models; `KINDS` says which, `plans/` holds the plans."""

from .case import Case, Mutant, cases
from .registry import KINDS, Kind

__all__ = ["KINDS", "Case", "Kind", "Mutant", "cases"]
