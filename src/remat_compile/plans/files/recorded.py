"""The model that a plan file names: paths that may be followed, and those a user must give.

A plan can come from anybody. What it calls its source is a wish, not a permission: a bare
file name beside the plan is looked at, an ONNX file there is read as data, and what can
execute code when it is loaded (Python, `.pt2`) waits until the user names it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, FBError, Note
from ...ir.expr import evaluate
from ...ir.wording import Worded
from ..source import NO_OPTIONS, check_spec, file_of, load_source
from .files import sha256_of

if TYPE_CHECKING:
    from ...ir.program import Header, Program
    from ..source import ModelOptions, Source

NAME_IT = Worded("name the model: load(path, model=...)", "give --model MODEL")

EXECUTES = (".py", ".pt2")
"""Suffixes of models whose loading can run code: `torch.export.load` unpickles what it cannot
read otherwise, and evaluates the texts of sizes."""
READS = ".onnx"
_NOT_BARE = re.compile(r'[/\\:\x00-\x1f\x7f-\x9f"*<>?|]')
"""Separators, drives, streams and addresses of some system, and what no file is called."""


class NoSourceModel(FBError):
    """A plan leads to no model that may be loaded: the user has to name one."""

    def __init__(self, code: str, message: str, hint: str, *, usage: bool = True):
        super().__init__(Diagnostic(code, message, hint=hint), usage=usage)


def is_bare_name(name: str) -> bool:
    """Return whether `name` is that of a file in the same folder, on every system."""
    plain = not _NOT_BARE.search(name) and name.isprintable()
    return plain and not name.startswith(("~", "-")) and name.strip(" .") != ""


def beside(plan: str | Path, name: str) -> Path:
    """The path of a recorded file, in the folder of the plan. FB0717 where it leads out."""
    if not is_bare_name(name):
        raise _outside(name, "it is no bare file name")
    folder = Path(plan).parent
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link that leads to itself
        inside = False
    if not inside:
        raise _outside(name, "it is a link that leads out of the folder of the plan")
    return path


def model_of_plan(
    header: Header,
    plan: str | Path,
    named: str | None = None,
    options: ModelOptions = NO_OPTIONS,
    *,
    trust_source: bool = False,
) -> str:
    """The MODEL to load for a plan in the file `plan`: `named` by the user, or the recorded one.

    FB0709 where none is recorded or found beside the plan, FB0717 where its name leads
    elsewhere, FB0718 where loading it may run code and `trust_source` does not allow that;
    FB0715 where it is not the file that was planned; and those of `check_spec`.
    """
    spec = _recorded_beside(header, plan, trust_source) if named is None else named
    check_spec(spec, options)
    _check_same_file(header, spec)
    return spec


def load_as_planned(
    program: Program, spec: str, options: ModelOptions = NO_OPTIONS, threads: int | None = None
) -> Source:
    """The model on as many threads as it was captured with, but for other `threads`: kernels, and
    so their sizes, workspace and bits, depend on it. Sizes that an ONNX file leaves open are the
    plan's."""
    import torch

    torch.set_num_threads(threads or program.header.threads)
    return load_source(spec, with_sizes(program, options))


def with_sizes(program: Program, options: ModelOptions = NO_OPTIONS) -> ModelOptions:
    """The options with the sizes of a plan, for what an ONNX file leaves open."""
    env, anode = {s.name: s.sample for s in program.symbols}, program.graph.anode
    shapes = [anode[argument.name].shape for argument in program.binding.arguments]
    planned = tuple(tuple(evaluate(size, env) for size in shape) for shape in shapes)
    return replace(options, planned=planned)


def _recorded_beside(header: Header, plan: str | Path, trust_source: bool) -> str:
    name = header.source
    if name is None:
        message = "the plan does not record a model file"
        raise NoSourceModel("FB0709", message, NAME_IT)
    path = beside(plan, file_of(name))
    if not path.is_file():
        message = f"the model {name} is not beside the plan"
        raise NoSourceModel("FB0709", message, NAME_IT)
    spec = str(path) + name.removeprefix(file_of(name))
    if path.suffix in EXECUTES and not trust_source:
        message = f"{name} is not loaded because a plan says so: loading it may run any code"
        hint = Worded(
            f"if you trust it: load(path, model={spec!r}) or load(path, trust_source=True)",
            f"if you trust it, give --model {shlex.quote(spec)} or --trust-source",
        )
        raise NoSourceModel("FB0718", message, hint)
    if path.suffix not in (READS, *EXECUTES):
        raise _outside(name, "it is no .onnx, .pt2 or .py file")
    return spec


def _check_same_file(header: Header, spec: str) -> None:
    """FB0715 where the file is not the one that was planned, by its hash."""
    recorded = header.sha256
    if recorded is None:
        return
    current = sha256_of(file_of(spec))
    if current != recorded:
        notes = (Note(f"planned: sha256 {recorded}"), Note(f"now:     sha256 {current}"))
        message = f"{file_of(spec)} has changed since the plan was made"
        raise FBError(Diagnostic("FB0715", message, notes=notes, hint="plan the model again"))


def _outside(name: str, why: str) -> NoSourceModel:
    message = f'the source "{name}" of the plan is not followed: {why}'
    only = "only a file beside the plan is; if you trust another,"
    hint = Worded(f"{only} load(path, model=...)", f"{only} give --model MODEL")
    return NoSourceModel("FB0717", message, hint, usage=False)
