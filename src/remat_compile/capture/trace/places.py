"""Source locations of traced operations: line and module of the user's model.

`torch.export` leaves that on every node. When the joint graph is traced from the model itself,
`recorded_places` does: for the time of each call of a torch function it puts the innermost line
of the user's and the path of the module whose method runs where `fx` looks for them.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch.overrides import TorchFunctionMode

LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
"""Frames in PyTorch and in this package (an ONNX model runs in its modules) are not the user's."""
_STANDARD = sysconfig.get_path("stdlib")
_TRACERS = tuple(
    str(Path(torch.__file__).with_name(part))
    for part in ("_dynamo", "_functorch", "_ops.py", "_subclasses", "autograd", "fx", "utils")
)
"""Most frames of a trace: no line of the user's, and no method of a module that is not called
through `torch.nn`."""
_SENTENCE_END = re.compile(r"(?<=[a-z)\]'\"]{2}\.)\s+(?=[A-Z(])")
_TO_PYTORCH = re.compile(
    r"[,.;]? *(please )?(file|open|report) (an? )?(issue|bug).*", re.IGNORECASE
)
"""Where an error speaks to the developers of PyTorch."""
_ABOVE = tuple(
    str(Path(__file__).parents[1] / name)
    for name in ("trace/joint.py", "trace/module.py", "torch/trust.py")
)
"""Frames that call the model: no line of the model stands above them."""


Paths = dict[int, tuple[str, type]]
"""Path and class of modules by their `id`."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's, `("", 0)` if there is none, and the innermost module's path."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        at = f"{Path(self.file).name}:{self.line}" if self.file else ""
        return f"{at} in {self.module}" if at and self.module else at or self.module


def place_of_caller(paths: Paths) -> Place:
    """Where the code that runs now stands; `paths` are the modules by `id`."""
    return place_of(sys._getframe(1), paths)


def place_of(frame: FrameType | None, paths: Paths) -> Place:
    """Where a frame stands, as far as the model goes."""
    file, line, module = "", 0, ""
    while frame is not None and not (file and module):
        code = frame.f_code
        if code.co_filename in _ABOVE:
            break
        if not _is_tracers(code.co_filename):
            if not file and is_users(code.co_filename):
                file, line = code.co_filename, frame.f_lineno
            if not module and code.co_varnames[:1] == ("self",):
                entry = paths.get(id(frame.f_locals.get("self")))
                module = entry[0] if entry is not None else ""
        frame = frame.f_back
    return Place(file, line, module)


@cache
def _is_tracers(file: str) -> bool:
    return file.startswith(_TRACERS)


@cache
def is_users(file: str) -> bool:
    """Return whether a line of `file` is one of the user's, or of a package that the model is
    from."""
    is_standard = file.startswith(_STANDARD) and "site-packages" not in file
    return not (is_standard or file.startswith((*LIBRARIES, "<")))


def paths_of(model: nn.Module) -> Paths:
    """Path and class of each module by its `id`; the first path of one that is shared. In place of
    the path stands what the module itself says (`remat_compile_place`)."""
    paths: Paths = {}
    for path, module in model.named_modules(remove_duplicate=False):
        place = getattr(module, "remat_compile_place", path)
        paths.setdefault(id(module), (place, type(module)))
    return paths


def first_place(
    run: Callable[[], object], paths: Paths, is_it: Callable[[FrameType, str, Any], bool]
) -> Place | None:
    """The line of the model at the first event of `sys.setprofile` in `run` that `is_it`."""
    places: list[Place] = []

    def watch(frame: FrameType, event: str, of: Any) -> None:
        if not places and is_it(frame, event, of):
            places.extend(place for place in [place_of(frame, paths)] if place.file)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(before)
    return places[0] if places else None


def error_in_model(
    error: BaseException, model: nn.Module | None = None, said: str | None = None
) -> str:
    """Return `said`, or the first sentence of an error, with the user's line and module that it
    came through."""
    paths = paths_of(model) if model is not None else {}
    place = Place("", 0, "")
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        path, kind = paths.get(id(frame.f_locals.get("".join(code.co_varnames[:1]))), ("", object))
        is_method = hasattr(kind, code.co_name)
        if is_users(code.co_filename) and (is_method or "site-packages" not in code.co_filename):
            place = Place(code.co_filename, line, place.module)
        if is_method:
            place = Place(place.file, place.line, path)
    lines = (str(error).strip() or type(error).__name__).splitlines()
    said = said or _TO_PYTORCH.sub("", _SENTENCE_END.split(lines[0], maxsplit=1)[0])
    return f"{said} ({place})" if str(place) else said


class _Recording(TorchFunctionMode):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.paths = paths_of(model)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        meta = fx_traceback.current_meta
        place = place_of(sys._getframe(1), self.paths)
        mine: dict[str, Any] = {}
        if place.file:
            mine["stack_trace"] = f'File "{place.file}", line {place.line}'
        if place.module:
            mine["nn_module_stack"] = {place.module: (place.module, "")}
        before = {key: meta[key] for key in mine if key in meta}
        meta.update(mine)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            for key in mine:
                meta.pop(key, None)
            meta.update(before)


def recorded_places(model: nn.Module) -> TorchFunctionMode:
    """Nodes traced inside carry the line and the module of `model` that they come from."""
    return _Recording(model)
