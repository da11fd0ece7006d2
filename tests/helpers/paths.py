"""Where the repository's files lie."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CONFORMANCE", "ROOT", "TESTS"]

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
CONFORMANCE = ROOT / "spec" / "conformance"
