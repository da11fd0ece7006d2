"""Where the repository's files lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
CONFORMANCE = ROOT / "spec" / "conformance"


def fbir(name: str) -> str:
    """The text of `tests/NAME.fbir`."""
    return (TESTS / f"{name}.fbir").read_text(encoding="utf-8")
