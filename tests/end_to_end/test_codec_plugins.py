"""Codecs of other packages: one that works, and what is said of those that do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT
from helpers.planners.plugin import install_module

SOURCE = (ROOT / "examples" / "my_codec" / "my_codec.py").read_text()
ENTRY = "brief = my_codec:BRIEF"

PLAN = """
import torch, remat_compile
from torch import nn
from remat_compile.plans.options import Errors
from remat_compile.plans.packed import packed
from remat_compile.plans.request import read_request
from remat_compile.capture.torch import export, lower
from remat_compile.report.subject import store_all
from remat_compile.backends.torch import build
from remat_compile.verifier import verify

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8))
x = torch.randn(64, 48)
errors = Errors()
asked = read_request(errors, codecs="all", lossy="brief")
errors.raise_if_any()
with lower(export(net, (x,))) as lowered:
    small = packed(lowered, asked)
    schedule = store_all(small.program)
    verdict = verify(small.program, schedule, allow_lossy=True)
    step, whole = build(small, schedule), build(lowered, store_all(lowered.program))
for a in verdict.assuming:
    print(a.text)
ys = [module(x) for module in (step, whole)]
assert torch.equal(*ys)
grads = [torch.autograd.grad(y.square().sum(), list(net.parameters())) for y in ys]
for name, ours, exact in zip(dict(net.named_parameters()), *grads):
    near = torch.allclose(ours, exact, rtol=0.05, atol=0.01 * exact.abs().max())
    print(name, torch.equal(ours, exact), near)
"""


def ran(folder: Path, code: str, entry: str = ENTRY, script: str = PLAN) -> str:
    """The output of a process that finds the plug-in, errors with it."""
    environment = install_module(folder, "my_codec", code, entry, "codecs")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_example_takes_part_as_any_other(tmp_path: Path) -> None:
    said = ran(tmp_path, SOURCE)
    assert "(brief); per element, brief: |error| <= |x| / 256 + 2^-133\n" in said
    assert "5 of 6 gradients are approximate" in said
    lines = [line.split() for line in said.splitlines() if line.endswith((" True", " False"))]
    assert len(lines) == 6, said
    for name, is_equal, is_near in lines:
        assert is_near == "True"
        assert (is_equal == "True") == (f'"{name}"' not in said)


@pytest.mark.parametrize(
    ("was", "now", "code", "why"),
    [
        (
            "import torch\n",
            "import torch\nraise OSError('no disk')\n",
            "FB0558",
            "OSError: no disk",
        ),
        ('"brief",', '"short",', "FB0558", 'its name is "short"'),
        ("size=size,", "", "FB0558", "have a `size`"),
        ('"my_codec:KERNELS"', '"my_codec:GONE"', "FB0558", "do not load"),
        ('"|error| <= |x| / 256 + 2^-133"', '""', "FB0558", "states a bound"),
        ('"lossy"', '"reader-exact"', "FB0558", "places are those of a reader-exact one"),
        ("mul(Const(2), *shape)", "mul(Const(1), *shape)", "FB0559", "its kernel gives"),
        (".to(dtype).view(list(shape))", ".view(list(shape))", "FB0559", "its kernel gives"),
        ("most = torch", "most = torch.gone", "FB0560", "AttributeError"),
    ],
)
def test_what_is_wrong_is_one_message(
    tmp_path: Path, was: str, now: str, code: str, why: str
) -> None:
    assert was in SOURCE
    said = ran(tmp_path, SOURCE.replace(was, now, 1))
    assert f"error[{code}]" in said, said
    assert 'codec "brief"' in said
    assert why in said
    assert "help: " in said


def test_one_that_is_broken_is_in_nobodys_way(tmp_path: Path) -> None:
    said = ran(tmp_path, "raise OSError", script=PLAN.replace("brief", "int8"))
    assert "gradients are approximate" in said
    assert "FB0558" not in said
