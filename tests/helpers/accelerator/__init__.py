"""A device for tests, called `queued`: queued kernels and copies, starved streams, poison on free,
limits in bytes. It computes with the CPU's kernels, so that its bits are the CPU's.

`accelerator()` builds it with the C++ compiler that is there (a minute, once) and registers it.
The build lies in PyTorch's folder for extensions (`TORCH_EXTENSIONS_DIR`).
It must come before the first backward of a process, in which PyTorch counts the devices.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension

__all__ = ["NAME", "Accelerator", "TooLateError", "accelerator", "missing_tools"]

NAME = "queued"
_HERE = Path(__file__).parent


def missing_tools() -> str | None:
    """What the device cannot be built without here, or None."""
    compiler = os.environ.get("CXX", "c++")
    missing = [tool for tool in (compiler, "ninja") if shutil.which(tool) is None]
    return f"no {' and no '.join(missing)} to build the device with" if missing else None


class TooLateError(Exception):
    """Something ran backward in this process before the device was there."""


class Accelerator:
    """The settings of the device, which is the only one of its kind in a process."""

    def __init__(self, extension: Any) -> None:
        self.device = torch.device(NAME, 0)
        self._extension = extension

    def starve(self, streams: Collection[int] = (), seed: int = 0) -> None:
        """Streams that run only when they are waited for (0 is that of the computations); the
        others run at once, or, by a seed that is not 0, by chance."""
        self._extension.starve(set(streams), seed)

    @contextmanager
    def limits(self, device_bytes: int = 0, pinned_bytes: int = 0) -> Any:
        """Inside, more is not to be had; 0 is without a limit."""
        self._extension.limit_device_bytes(device_bytes)
        self._extension.limit_pinned_bytes(pinned_bytes)
        try:
            yield
        finally:
            self._extension.limit_device_bytes(0)
            self._extension.limit_pinned_bytes(0)

    @property
    def pinned_bytes(self) -> int:
        """Of the host, pinned now."""
        return int(self._extension.pinned_bytes())

    @property
    def synchronous_operators(self) -> dict[str, int]:
        """How often an operator ended all that was queued, because its results cannot be told
        without data."""
        return dict(self._extension.synchronous_operators())


@cache
def accelerator() -> Accelerator:
    """Raises RuntimeError where it cannot be built, and TooLateError."""
    torch.utils.rename_privateuse1_backend(NAME)  # type: ignore[attr-defined]
    extension = _built()
    torch._register_device_module(NAME, _module(extension))  # type: ignore[no-untyped-call]
    made = Accelerator(extension)
    x = torch.ones(1, requires_grad=True)
    try:
        torch.autograd.grad(x.to(made.device).sum(), x)
    except RuntimeError as error:
        raise TooLateError(str(error).splitlines()[0]) from error
    return made


def _built() -> Any:
    sources = sorted(p for p in _HERE.iterdir() if p.suffix in (".cpp", ".hpp"))
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:12]
    return cpp_extension.load(
        f"remat_{NAME}_{digest}", [str(_HERE / "device.cpp")], extra_cflags=["-O1", "-g0"]
    )


def _module(extension: Any) -> ModuleType:
    """What PyTorch asks of `torch.queued`."""
    module = ModuleType(f"torch.{NAME}")
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "manual_seed": extension.manual_seed,
        "manual_seed_all": extension.manual_seed,
        "get_rng_state": lambda device=None: extension.get_rng_state(),
        "set_rng_state": lambda state, device=None: extension.set_rng_state(state),
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_amp_supported_dtype": lambda: [torch.bfloat16],
    }
    module.__dict__.update(answers)
    return module
