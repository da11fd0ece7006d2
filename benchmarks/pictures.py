"""Makes `docs/img`: reports and a frontier as a browser shows them.

    python benchmarks/pictures.py [--only gpt2-half]

Needs the extra [report] and Chromium. Prints how long each report took to make and to draw, with
its size. Costs are by roofline for an A100, so the same pictures come out anywhere.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _common import gpt2
from torch import Tensor, nn

import remat_compile

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
IMAGES = Path(__file__).parents[1] / "docs" / "img"
DEVICE = "a100-80gb"


def gpt2_12() -> tuple[nn.Module, tuple[Tensor, ...]]:
    ids = torch.randint(0, 1024, (4, 128))
    return gpt2(layers=12, width=256, heads=4, vocab=1024, seq=128), (ids, torch.roll(ids, -1, 1))


def unet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from helpers.networks.convolutions import UNet

    torch.manual_seed(0)
    return UNet(16).train(), (torch.rand(8, 3, 64, 64),)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only")
    only = parser.parse_args().only
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here")
        return 1
    IMAGES.mkdir(exist_ok=True)
    cases: dict[str, Callable[[], str]] = {
        "gpt2-half": lambda: report(*gpt2_12(), "50%"),
        "unet": lambda: report(*unet(), "50%"),
        "gpt2-least": lambda: report(*gpt2_12(), "range:0.05"),
        "frontier": frontier,
    }
    for name, make in cases.items():
        if only in (None, name):
            text = make()
            seconds = shoot(browser, text, IMAGES / f"{name}.png")
            print(f"{name}: page of {len(text) / 1e6:.1f} MB, drawn in {seconds:.1f} s", flush=True)
    return 0


def report(model: nn.Module, args: tuple[Tensor, ...], budget: str) -> str:
    plan = remat_compile.plan(
        model, args, activation_budget=budget, costs="roofline", device=DEVICE, time_limit_s=30
    )
    begun = time.perf_counter()
    text = plan.report()
    print(f"{plan!r}: report made in {time.perf_counter() - begun:.1f} s", flush=True)
    return text


def frontier() -> str:
    model, args = gpt2_12()
    sweep = remat_compile.sweep(
        model,
        args,
        planners="auto,dtr,rotor,periodic",
        activation_budgets="15%..100%:8",
        costs="roofline",
        device=DEVICE,
        time_limit_s=10,
    )
    return sweep.to_html()


def shoot(browser: str, text: str, image: Path) -> float:
    """Seconds until the browser had drawn the page and written the picture."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(text, encoding="utf-8")
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=8000"]
        command += ["--window-size=1200,1100", f"--screenshot={image}", page.as_uri()]
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
