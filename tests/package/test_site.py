"""The documentation: every link leads somewhere, and the site is built without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(p for d in ("docs", "spec", "examples") for p in (ROOT / d).rglob("*.md")),
    )
)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", lambda m: m[0].replace("](", "] ("), text)
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        linked = (page.parent / path) if path else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), target


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and MkDocs make them."""
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
    page = (tmp_path / "tutorials" / "train" / "index.html").read_text(encoding="utf-8")
    assert "Train in fewer bytes" in page
    for made in tmp_path.rglob("*.html"):
        text = made.read_text(encoding="utf-8")
        loads = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\"> ]+)", text)
        assert not loads, f"{made.name} loads {loads}"
