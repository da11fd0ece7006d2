"""Releases of ONNX whose stored tests are run: wheels, read as zip files, never installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LEAST_CASES, LEAST_SHARE = 400, 0.95
"""Float cases that a release has more of, and the share of them that must be right."""

RELEASES = {
    **dict.fromkeys(("1.5.0", "1.6.0"), "3.7"),
    **dict.fromkeys(("1.7.0", "1.8.1"), "3.8"),
    **dict.fromkeys(("1.9.0", "1.10.2", "1.11.0"), "3.9"),
    "1.12.0": "3.10",
    **dict.fromkeys(("1.13.1", "1.14.1", "1.15.0", "1.16.2", "1.17.0", "1.18.0"), "3.11"),
    **dict.fromkeys(("1.19.1", "1.20.1", "1.21.0", "1.22.0"), "3.11"),
}
"""By version: a Python that it has a wheel for."""
PLATFORMS = [f"manylinux{tag}_x86_64" for tag in ("1", "2010", "2014", "_2_12", "_2_17", "_2_27")]
PLATFORMS.append("manylinux_2_28_x86_64")

FAULTY: tuple[tuple[str, str, str], ...] = (
    (
        r"1\.6\..*",
        "resize_upsample_sizes_nearest_(ceil|floor|round_prefer_ceil)_",
        "the model lacks the attribute nearest_mode that its result was made with; 1.7 adds it",
    ),
    (
        r"1\.9\..*",
        "convtranspose_autopad_same$",
        "the model says SAME_LOWER, its result is that of SAME_UPPER; 1.10 corrects the model",
    ),
    (r"1\.13\..*", "col2im_pads$", "1.14 stores another result for the same model and inputs"),
    (
        r"1\.1[567]\..*",
        "averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True$",
        "1.18 stores another result for the same model and inputs",
    ),
    (
        r"1\.18\..*",
        "attention_(3d|4d_gqa)",
        "heads were taken apart in the wrong order; 1.19 stores other results for the same models",
    ),
    (
        r"1\.(18|19|20|21)\..*",
        "attention_.*qk_matmul",
        "modes 1 and 2 of qk_matmul_output were exchanged; 1.22 corrects models, results and text",
    ),
    (
        r"1\.(19|20)\..*",
        "l2normalization_axis_0$",
        "0 / 0 at a zero vector; 1.21 stores 0 for the same model and inputs",
    ),
)
"""Patterns of releases and cases, and why the stored result is not what the standard says."""


def wheel_of(release: str, folder: Path) -> Path:
    """The wheel in `folder`, downloaded where it is not there. CalledProcessError where that
    fails."""
    folder.mkdir(parents=True, exist_ok=True)
    if not [*folder.glob(f"onnx-{release}-*.whl")]:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(folder)]
        command += ["--python-version", RELEASES[release], "--implementation", "cp"]
        command += [word for platform in PLATFORMS for word in ("--platform", platform)]
        subprocess.run([*command, f"onnx=={release}"], check=True, capture_output=True, timeout=120)
    return next(folder.glob(f"onnx-{release}-*.whl"))


def faulty(release: str, name: str) -> str | None:
    """Why a stored result is known to be wrong, or None."""
    for releases, cases, reason in FAULTY:
        if re.fullmatch(releases, release) and re.search(cases, name):
            return reason
    return None
