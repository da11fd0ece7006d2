"""What Inductor may use of the processor is asked once, beside the capture, and before anything is
timed."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from helpers.clock import HANGS_S
from remat_compile.backends.torch import kernels
from remat_compile.backends.torch.kernels import probe
from remat_compile.driver import regions


def test_it_is_asked_once_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpu_vec_isa

    go, asked = Event(), list[bool]()

    def valid_vec_isa_list() -> None:
        asked.append(go.wait(HANGS_S))
        raise RuntimeError("no compiler")  # whoever needs the answer is told

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", valid_vec_isa_list)
    monkeypatch.setattr(probe, "_threads", [])
    probe.end_probe()  # none was begun
    for _ in range(2):
        probe.begin_probe()
    assert asked == []
    go.set()
    for _ in range(2):
        probe.end_probe()
    assert asked == [True]


@pytest.mark.parametrize(
    ("fuse", "device", "where", "begins"),
    [
        ("auto", None, "cpu", True),
        ("inductor", None, "cpu", True),
        ("none", None, "cpu", False),
        ("xla", None, "cpu", False),
        ("auto", "h200", "cpu", False),  # costs by roofline: no kernel is made
        ("auto", None, "meta", False),
    ],
)
def test_it_is_asked_where_kernels_will_be_made(
    fuse: str, device: str | None, where: str, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(kernels, "begin_probe", lambda: begun.append(1))
    request: Any = SimpleNamespace(fuse=fuse, device=device)
    regions.begin_probe(request, nn.Linear(2, 2, device=torch.device(where)))
    assert bool(begun) == begins
    regions.begin_probe(request, "net.onnx")
    assert len(begun) == 2 * begins or where == "meta"
