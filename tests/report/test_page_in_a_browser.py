"""The page in Chromium: usable with the keys alone, and readable in dark and light."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.browser import Tab, browser, tab
from helpers.paths import ROOT
from remat_compile.plans.files.look import read_plan
from remat_compile.report.page import page

GPT = ROOT / "tests/verifier/mutants/plans/gpt.fbir"

pytestmark = pytest.mark.skipif(browser() is None, reason="no headless browser")

TAB, ENTER, RIGHT = ("Tab", 9, ""), ("Enter", 13, "\r"), ("ArrowRight", 39, "")
FOCUSED = """(() => {
    const e = document.activeElement, look = getComputedStyle(e);
    return [e.id || e.className || e.tagName, e.tagName, look.outlineStyle, look.outlineWidth];
})()"""
CONTRASTS = """(() => {
    const canvas = document.createElement("canvas").getContext("2d");
    function light(colour) {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
            .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    }
    const ground = light(getComputedStyle(document.body).backgroundColor), found = {};
    for (const what of ["body", "h2", "p.dim", "caption", "td", "nav a", "summary", ".took",
                        "span.again"]) {
        const e = document.querySelector(what);
        if (!e) continue;
        const ink = light(getComputedStyle(e).color);
        found[what] = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    }
    return found;
})()"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """The report of a plan, drawn."""
    pytest.importorskip("vl_convert")
    folder = tmp_path_factory.mktemp("page")
    path = folder / "page.html"
    path.write_text(page(read_plan(GPT, "least")._subject), encoding="utf-8")
    with tab(folder, path.as_uri()) as opened:
        opened.wait_for("document.body && document.body.dataset.drawn")
        assert opened.value("document.body.dataset.drawn") == "yes"
        yield opened


def test_every_part_is_reached_with_the_keys(shown: Tab) -> None:
    """Tab goes from links to the slider, into every table that scrolls and to every module that
    opens, and shows where it is."""
    shown.value("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached: list[str] = []
    for _ in range(80):
        shown.press(*TAB)
        name, kind, outline, width = shown.value(FOCUSED)
        if kind == "BODY" and reached:
            break
        assert (outline, width) == ("solid", "3px"), f"{name} does not show that it has the focus"
        reached.append(name if kind != "SUMMARY" else "summary")
    count = shown.value("document.querySelectorAll('nav a').length")
    assert reached.count("A") == count == 8
    assert "slider" in reached
    tables = shown.value("document.querySelectorAll('.scroll').length")
    assert reached.count("scroll") == tables >= 5
    assert reached.count("summary") >= 1


def test_the_slider_takes_arrows_and_says_what_it_shows(shown: Tab) -> None:
    shown.value("document.getElementById('slider').focus()")
    text = "document.getElementById('moment').textContent"
    said = "document.getElementById('slider').getAttribute('aria-valuetext')"
    before = shown.value(f"[{text}, {said}]")
    shown.press(*RIGHT)
    after = shown.value(f"[{text}, {said}]")
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert after[0].startswith(after[1].partition(",")[0])


def test_a_module_opens_with_enter(shown: Tab) -> None:
    first = "document.querySelector('.tree details details')"
    was = shown.value(f"{first}.querySelector('summary').focus(); {first}.open")
    shown.press(*ENTER)
    assert shown.value(f"{first}.open") is not was


def test_the_parts_have_names(shown: Tab) -> None:
    unnamed = shown.value(
        "[...document.querySelectorAll('[role=img], [role=region], section, input')].filter("
        "(e) => !e.ariaLabel && !e.getAttribute('aria-labelledby') && !(e.labels || []).length)"
        ".map((e) => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
    assert shown.value("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(shown: Tab, scheme: str) -> None:
    """A contrast of 4.5, as WCAG 2 asks of text; of 3 where it marks what is said by words too."""
    shown.prefer(scheme)
    shown.wait_for(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
    contrasts = shown.value(CONTRASTS)
    assert len(contrasts) >= 8
    for what, contrast in contrasts.items():
        assert contrast >= (3 if what == "span.again" else 4.5), f"{what} in {scheme}: {contrast}"
    grounds = shown.value("getComputedStyle(document.body).backgroundColor")
    assert grounds == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(22, 25, 29)")
