"""The documentation: every link leads somewhere, and the site is built without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from helpers.paths import ROOT
from remat_compile.planners.registry import own

PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(p for d in ("docs", "spec", "examples") for p in (ROOT / d).rglob("*.md")),
    )
)
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
MOST_WORDS = 700
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def test_every_link_leads_somewhere() -> None:
    assert [broken for page in PAGES for broken in broken_links(page)] == []


def broken_links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", lambda m: m[0].replace("](", "] ("), text)
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        linked = (page.parent / path) if path else page
        missing = not linked.exists()
        if missing or (anchor and linked.suffix == ".md" and anchor not in anchors(linked)):
            yield f"{page.relative_to(ROOT)}: {target}"


def test_every_page_that_the_code_names_exists() -> None:
    sources = [p for d in ("src", "examples", "benchmarks") for p in (ROOT / d).rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = {*re.findall(r"\b(?:docs|spec)/[\w/-]+\.md\b", text)}
    assert named
    assert {page for page in named if not (ROOT / page).exists()} == set()


def test_pages_of_the_guide_are_short() -> None:
    words = {p.name: len(p.read_text(encoding="utf-8").split()) for p in GUIDE}
    assert {name: count for name, count in words.items() if count > MOST_WORDS} == {}


def test_the_page_of_planners_has_each_with_its_options() -> None:
    text = (ROOT / "docs" / "reference" / "planners.md").read_text(encoding="utf-8")
    sections = {s.partition("\n")[0]: s for s in text.split("\n## ")[1:]}
    assert {*own()} == {*sections} - {"More machines"}
    for name, planner in own().items():
        options = {f.name for f in fields(cast("Any", planner.load()))}
        assert {o for o in options if f"`{o}`" not in sections[name]} == set(), name


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and MkDocs make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in heads}


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "WARNING" not in ran.stderr
    page = (tmp_path / "guide" / "train" / "index.html").read_text(encoding="utf-8")
    assert "Train in fewer bytes" in page
    for made in tmp_path.rglob("*.html"):
        text = made.read_text(encoding="utf-8")
        loads = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\"> ]+)", text)
        assert not loads, f"{made.name} loads {loads}"
