"""Where the repository's files lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
CONFORMANCE = ROOT / "spec" / "conformance"
