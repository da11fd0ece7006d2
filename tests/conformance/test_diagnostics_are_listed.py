"""`spec/diagnostics.md` is the list of all codes, and each code of the language is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"
CODE = re.compile(r"\bFB\d{4}\b")
ROW = re.compile(r"^\| (FB\d{4}) \| [^|]+ \| [^|]+ \|$", re.M)

AREAS = {
    "FB01": "Syntax of the text form",
    "FB02": "Well-formedness of a program",
    "FB03": "Meaning of a schedule",
    "FB04": "Budgets and planners",
    "FB05": "PyTorch frontend",
    "FB06": "ONNX frontend",
    "FB07": "Files and the command line",
    "FB08": "Verifier",
    "FB09": "Backends and costs",
    "FB10": "Pipelines",
}

INTRODUCTION = """# Diagnostics

Every refusal and every warning has a stable code. A message shows the place, the line
with a caret where there is a text, notes on other places, and what to do. Exit codes of the
command: 0 done, 1 the input or the plan is refused, 2 wrong usage. Nothing is written then.

Codes FB01xx, FB02xx and FB03xx belong to the language: `conformance/invalid` shows each of
them. This file is put together from `diagnostics.d/*.md` by
`pytest tests/conformance --update-golden`.
"""


def merged() -> str:
    rows: dict[str, str] = {}
    for path in sorted((SPEC / "diagnostics.d").glob("*.md")):
        for match in ROW.finditer(path.read_text(encoding="utf-8")):
            assert match[1] not in rows, f"{match[1]} is listed twice"
            rows[match[1]] = match[0]
    parts = [INTRODUCTION]
    for area, title in AREAS.items():
        codes = sorted(code for code in rows if code.startswith(area))
        if codes:
            head = f"## {title} ({area}xx)\n\n| code | meaning | what to do |\n|---|---|---|\n"
            parts.append(head + "\n".join(rows[code] for code in codes) + "\n")
    return "\n".join(parts)


def used() -> set[str]:
    sources = (ROOT / "src").rglob("*.py")
    return {code for path in sources for code in CODE.findall(path.read_text(encoding="utf-8"))}


def test_the_list_is_put_together(golden: Callable[[Path, str], None]) -> None:
    golden(SPEC / "diagnostics.md", merged())


def test_every_row_of_an_area_is_a_table_row() -> None:
    for path in sorted((SPEC / "diagnostics.d").glob("*.md")):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not line.startswith("| FB") or ROW.fullmatch(line), f"{path.name}: {line}"


def test_every_code_in_the_source_is_listed_and_the_other_way_round() -> None:
    listed = set(CODE.findall("".join(re.findall(r"^\| FB\d{4}", merged(), re.M))))
    assert used() - listed == set(), "add a row to spec/diagnostics.d/<area>.md"
    assert listed - used() == set(), "no source uses these codes"


def test_every_code_of_the_language_has_a_file() -> None:
    shown = {path.stem[:6].upper() for path in (SPEC / "conformance" / "invalid").glob("*.fbir")}
    language = {code for code in used() if code[:4] in ("FB01", "FB02", "FB03")}
    assert language - shown == set()
