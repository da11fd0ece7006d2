"""Device files: those that come with the package load, malformed ones are refused whole."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch

from remat_compile.costs import device_names, load_device, measured_link
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Target

GOOD = """
name = "mine"
memory = "1.5GiB"
granularity = 512
memory_bandwidth = "2TB/s"
launch_overhead_us = 2.5
[flops]
f32 = 1e12
f16 = 4e12
"""


def test_packaged_devices_load() -> None:
    assert device_names() == (
        "a100-40gb",
        "a100-80gb",
        "a10g",
        "b200",
        "cpu",
        "gh200",
        "h100-80gb",
        "h100-pcie",
        "h200",
        "l40s",
        "m-series",
        "mi300x",
        "rtx-3060-12gb",
        "rtx-3090",
        "rtx-4090",
        "rtx-5090",
        "t4",
        "v100-16gb",
    )
    for name in device_names():
        device = load_device(name)
        assert device.name == name
        assert device.granularity_bytes == {"cpu": 1, "m-series": 256}.get(name, 512)
        assert 0 <= (device.library_bytes or 0) < device.memory_bytes / 40
        text = (
            resources.files("remat_compile.costs").joinpath("devices", f"{name}.toml").read_text()
        )
        assert "Figures: " in text or name == "cpu"
        assert device.peak_flops_per_s("f16") >= device.peak_flops_per_s("f64") or name == "cpu"


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    device = load_device(str(path))
    assert device.memory_bytes == 3 * 2**29
    assert device.memory_bytes_per_s == 2 * 10**12
    assert device.launch_ns == 2500
    assert device.peak_flops_per_s("f16") == 4e12
    assert device.peak_flops_per_s("i64") == 1e12
    assert device.target == Target("mine", 3 * 2**29, 512)


def test_unknown_device_names_the_nearest() -> None:
    with pytest.raises(FBError, match='Did you mean "h200"') as caught:
        load_device("h20")
    assert caught.value.diagnostics[0].code == "FB0906"
    assert caught.value.usage


def test_missing_and_binary_files(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.toml", binary, tmp_path):
        with pytest.raises(FBError) as caught:
            load_device(str(path))
        assert caught.value.diagnostics[0].code == "FB0906"


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [
        ('"1.5GiB"', '"1.5"', ["`memory`"]),
        ('"1.5GiB"', "7", ["`memory`"]),
        ('"1.5GiB"', '"0GiB"', ["`memory`"]),
        ('"2TB/s"', '"2TB"', ["`memory_bandwidth`"]),
        ("512", "0", ["`granularity`"]),
        ("512", "1.5", ["`granularity`"]),
        ("512", "true", ["`granularity`"]),
        ("2.5", "-1", ["`launch_overhead_us`"]),
        ("f32 = 1e12", "f33 = 1e12", ["`flops.f33`"]),
        ("f32 = 1e12", "f32 = 0", ["`flops.f32`"]),
        ('name = "mine"', "name = 3", ["`name`"]),
        ('memory = "1.5GiB"\n', "", ["`memory` is missing"]),
        (
            "launch_overhead_us",
            'd2h = "2GB/s"\nh2d = "1GB/s"\nboth = "1GB/s"\nlaunch_overhead_us',
            ["`both`"],
        ),
        ("launch_overhead_us", "copy_latency_us = -1\nlaunch_overhead_us", ["`copy_latency_us`"]),
        ("launch_overhead_us", "copy_issue_us = -1\nlaunch_overhead_us", ["`copy_issue_us`"]),
        ("launch_overhead_us", "copy_issue_us = inf\nlaunch_overhead_us", ["`copy_issue_us`"]),
        ("launch_overhead_us", "copy_latency_us = nan\nlaunch_overhead_us", ["`copy_latency_us`"]),
        ("launch_overhead_us", "copy_issue_us = 1.1e9\nlaunch_overhead_us", ["`copy_issue_us`"]),
        ("2.5", "inf", ["`launch_overhead_us`"]),
        ("512", "nan", ["`granularity`"]),
        ("f32 = 1e12", "f32 = nan", ["`flops.f32`"]),
        ('"2TB/s"', '"9999999TB/s"', ["`memory_bandwidth`"]),
        ('"1.5GiB"', f'"{"9" * 400}GiB"', ["`memory`"]),
        ('name = "mine"', 'nam = "mine"\nmemry = "1GiB"', ["`name`", "`nam`", "`memry`"]),
    ],
)
def test_malformed_entries_are_all_reported(
    tmp_path: Path, old: str, new: str, problems: list[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(FBError) as caught:
        load_device(str(path))
    diagnostics = caught.value.diagnostics
    assert [d.code for d in diagnostics] == ["FB0907"] * len(problems)
    assert all(problem in d.message for problem, d in zip(problems, diagnostics, strict=True))


def test_the_link_of_a_file_is_that_of_its_target(tmp_path: Path) -> None:
    path = tmp_path / "linked.toml"
    link = 'd2h = "2GB/s"\nh2d = "1GB/s"\nboth = "2.5GB/s"\ncopy_latency_us = 12.5\n'
    link += "copy_issue_us = 7\n"
    path.write_text(GOOD.replace("launch_overhead_us", f"{link}launch_overhead_us"))
    target = load_device(str(path)).target
    assert (target.d2h_bytes_per_s, target.h2d_bytes_per_s) == (2 * 10**9, 10**9)
    assert (target.both_bytes_per_s, target.copy_latency_ns) == (25 * 10**8, 12_500)
    assert target.copy_issue_ns == 7000
    assert target.shared_bytes_per_s == 25 * 10**8
    assert load_device("v100-16gb").target.shared_bytes_per_s == 122 * 10**8
    assert load_device("gh200").target.shared_bytes_per_s is None


def test_an_empty_file_misses_everything_needed(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    with pytest.raises(FBError) as caught:
        load_device(str(path))
    assert len(caught.value.diagnostics) == 6


def test_text_that_is_not_toml_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('name = "x"\nmemory = = 3\n')
    with pytest.raises(FBError) as caught:
        load_device(str(path))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FB0907"
    assert diagnostic.span is not None
    assert (diagnostic.span.line, diagnostic.span.column) == (2, 10)


def test_importing_and_roofline_need_no_torch() -> None:
    code = (
        "import sys; import remat_compile.costs as costs; costs.load_device('h200');"
        "costs.roofline; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# -- A target with another link, and what stays as it is where none can be measu ------------------

TARGET = Target("gpu", 1 << 30, granularity_bytes=512, host_bytes=1 << 31)


def test_rates_take_the_place_of_the_targets_own() -> None:
    made = TARGET.with_link(20, 10, 25, 3, 2)
    assert made.has_link
    assert (made.d2h_bytes_per_s, made.h2d_bytes_per_s) == (20, 10)
    assert (made.both_bytes_per_s, made.copy_latency_ns, made.copy_issue_ns) == (25, 3, 2)
    assert made.with_link(5, 6).both_bytes_per_s is None
    assert made.with_link(5, 6).copy_issue_ns == 0
    assert (made.name, made.host_bytes) == (TARGET.name, TARGET.host_bytes)


def test_without_memory_to_measure_it_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    answers = iter([torch.OutOfMemoryError("none left"), None])

    def measured(of: torch.device) -> tuple[int, int, int, int, int]:
        assert of == device
        if (error := next(answers)) is not None:
            raise error
        return 20, 10, 25, 3, 2

    monkeypatch.setattr(measured_link, "_measured", measured)
    assert measured_link.with_measured_link(TARGET, device) == TARGET
    assert measured_link.with_measured_link(TARGET, device) == TARGET.with_link(20, 10, 25, 3, 2)
