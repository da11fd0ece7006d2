"""Seeded faults in correct plans of real models; `KINDS` says which, `plans/` holds the plans."""

from .case import NAMES, QUICK, Case, Mutant, case_named, cases
from .registry import KINDS, Kind

__all__ = ["KINDS", "NAMES", "QUICK", "Case", "Kind", "Mutant", "case_named", "cases"]
