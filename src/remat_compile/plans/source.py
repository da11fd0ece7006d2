"""Sources of a model: an ONNX file, a `.pt2` file, or a function in a Python file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from ..ir.diagnostics import Diagnostic, FBError, Note, nearest
from .files.files import sha256_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..capture.lowered import Exported
    from ..capture.torch.optimizer import OptimizerUpdates
    from .files.files import FileRead

FORMS = "a model is a .onnx or .pt2 file, file.py:factory, or a .fbir file to plan again"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options for what an ONNX file leaves open: sizes of dynamic dimensions, values of inputs,
    sample inputs (`.npz`), whether batch normalisations train, and patterns of the initialisers
    that do (none: by the frontend's rule). `planned` are the shapes that a plan of the file has."""

    dims: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    sample: str | None = None
    train_bn: bool = False
    trainable: tuple[str, ...] = ()
    planned: tuple[tuple[int, ...], ...] = ()

    @property
    def given(self) -> list[str]:
        """The options that were set, as they are spelled on the command line."""
        pairs = (
            ("--dim", self.dims),
            ("--input", self.inputs),
            ("--sample", self.sample),
            ("--train-bn", self.train_bn),
            ("--trainable", self.trainable),
        )
        return [name for name, value in pairs if value]


NO_OPTIONS = ModelOptions()


@dataclass(frozen=True)
class Source:
    """An exported model, how its file is recorded in a plan, what must not be written over, and
    the optimizer of its step."""

    exported: Exported
    name: str | None = None
    sha256: str | None = None
    warnings: tuple[Diagnostic, ...] = ()
    reads: tuple[FileRead, ...] = ()
    optimizer: OptimizerUpdates | None = None


def is_program(spec: str) -> bool:
    """Return whether MODEL names a text to plan again: `.fbir`, or `-` for standard input."""
    return spec == "-" or spec.endswith(".fbir")


def file_of(spec: str) -> str:
    """The file in MODEL: `dir/net.py` of `dir/net.py:make`."""
    path, colon, name = spec.rpartition(":")
    return path if colon and path.endswith(".py") and name.isidentifier() else spec


def check_spec(spec: str, options: ModelOptions = NO_OPTIONS) -> None:
    """FB0702 for what is no model, FB0701 for a missing file, FB0711 for options that do
    not apply; asked before anything is loaded."""
    file = file_of(spec)
    suffix = Path(file).suffix
    if suffix == ".py" and file == spec:
        message = f"{spec} does not say which function makes the model"
        raise _usage("FB0702", message, f"write {spec}:NAME")
    if suffix not in (".onnx", ".pt2", ".py", ".fbir") and spec != "-":
        code = "FB0702" if Path(file).exists() else "FB0701"
        message = f"{spec} is no model" if code == "FB0702" else f"no file {spec}"
        raise _usage(code, message, FORMS)
    if spec != "-" and not Path(file).is_file():
        what = "is a directory" if Path(file).is_dir() else "does not exist"
        raise _usage("FB0701", f"model file {file} {what}")
    given = [name for name in options.given if suffix != ".py" or name != "--dim"]
    if given and suffix != ".onnx":
        names = " and ".join(given)
        raise _usage("FB0711", f"{names} only {'apply' if ' ' in names else 'applies'} to ONNX")


def check_module(model: object, args: object) -> None:
    """FB0706 for what cannot be a model with its arguments."""
    from torch import nn

    if not isinstance(model, nn.Module):
        hint = "pass a torch.nn.Module, or the path of a .onnx, .pt2 or .fbir file"
        raise _usage("FB0706", f"a {type(model).__name__} is no model", hint)
    if not isinstance(args, tuple | list):
        message = f"the sample arguments are a {type(args).__name__}, not a tuple"
        raise _usage("FB0706", message, "write (x,)")


def load_source(spec: str, options: ModelOptions = NO_OPTIONS, *, strict: bool = False) -> Source:
    """Reads, builds and exports the model behind MODEL; `strict` is that of `export`.

    Raises the diagnostics of the frontends, FB0704 to FB0706 for a factory that cannot
    be used, and FB0712 where a package is missing.
    """
    check_spec(spec, options)
    suffix = Path(file_of(spec)).suffix
    recorded = Path(file_of(spec)).name
    if suffix == ".onnx":
        _need("onnx", "onnx")
        if options.sample is None and not options.planned:
            from ..capture.onnx.dims import check_dims

            check_dims(spec, options.dims)  # before PyTorch is imported
        _need("torch", "onnx")
        return _load_onnx(spec, options)
    if suffix == ".pt2" and not is_zipfile(spec):  # before PyTorch is imported
        message = f"{spec} is not a readable .pt2 file: it is not a zip file"
        hint = "write it with torch.export.save(torch.export.export(model, args), path)"
        raise FBError(Diagnostic("FB0503", message, hint=hint))
    _need("torch", "torch")
    from ..capture.torch import export, load_pt2

    if suffix == ".pt2":
        return Source(load_pt2(spec), recorded, sha256_of(spec))
    factory = spec.removeprefix(file_of(spec))
    executed, sha256 = _execute(file_of(spec))
    made = _from_factory(file_of(spec), executed, factory[1:], options.dims)
    module, args, kwargs, optimizer = made
    exported = export(module, args, kwargs, strict=strict)
    source = Source(exported, recorded + factory, sha256)
    if optimizer is None:
        return source
    from ..capture.torch.optimizer import OptimizerUpdates

    return replace(source, optimizer=OptimizerUpdates(optimizer, module))


def _load_onnx(path: str, options: ModelOptions) -> Source:
    from ..capture.onnx import build_module
    from ..capture.torch import export

    built = build_module(
        path,
        dims=options.dims,
        inputs=options.inputs,
        sample=options.sample,
        train_bn=options.train_bn,
        trainable=options.trainable or None,
        planned=options.planned,
    )
    exported = export(built.module, built.args)
    return Source(exported, Path(path).name, built.sha256, tuple(built.warnings))


def _from_factory(
    file: str, module: ModuleType, name: str, dims: Mapping[str, str]
) -> tuple[Any, tuple[Any, ...], dict[str, Any], Optimizer | None]:
    """The module, arguments, keyword arguments and optimizer that `name()` in `file` returns, at
    the sizes `dims` of its parameters."""
    from torch import nn
    from torch.optim import Optimizer

    factory = getattr(module, name, None)
    if not callable(factory):
        functions = [key for key, value in vars(module).items() if callable(value)]
        message = f"{file} has no function {name}.{nearest(name, functions)}"
        raise _usage("FB0704", message)
    sizes = _sizes_of_factory(f"{name}() in {file}", factory, dims)
    made = _run(f"{name}() in {file}", file, lambda: factory(**sizes))
    optimizer = None
    if isinstance(made, tuple) and made and isinstance(made[-1], Optimizer):
        *rest, optimizer = made
        made = tuple(rest)
    match made:
        case (nn.Module() as model, tuple() | list() as args):
            return model, tuple(args), {}, optimizer
        case (nn.Module() as model, tuple() | list() as args, dict() as kwargs):
            return model, tuple(args), kwargs, optimizer
        case _:
            shape = f"a {type(made).__name__}"
            if isinstance(made, tuple):
                shape = f"({', '.join(type(part).__name__ for part in made)})"
            hint = "return (model, args) or (model, args, kwargs), where args is a tuple"
            hint += "; an optimizer may stand behind them"
            raise _usage("FB0706", f"{name}() in {file} returns {shape}", hint)


def _sizes_of_factory(
    what: str, factory: Callable[..., Any], dims: Mapping[str, str]
) -> dict[str, int]:
    """FB0976 for a size that the function does not take, or that is no whole number."""
    known = [*inspect.signature(factory).parameters] if dims else []
    for name, text in dims.items():
        if name not in known:
            hint = (
                f"give it one with a default, as in ({name}=8), and size the sample arguments by it"
            )
            raise _usage("FB0976", f"{what} has no parameter {name}.{nearest(name, known)}", hint)
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise _usage("FB0976", f'{name} = "{text}" is no size', f"write --dim {name}=8")
    return {name: int(text) for name, text in dims.items()}


class _FromSource(SourceFileLoader):
    """Compiles the file anew: bytecode beside it is told apart by second and size alone, and the
    plan records the digest of the text. `sha256` is of what was compiled: the file may change."""

    sha256 = ""

    def get_code(self, fullname: str) -> CodeType:
        text = self.get_data(self.path)
        self.sha256 = hashlib.sha256(text).hexdigest()
        return self.source_to_code(text, self.path)


def _execute(file: str) -> tuple[ModuleType, str]:
    """The module of a file, and the digest of the text that was executed."""
    path = Path(file).resolve()
    name = _module_name(path)
    loader = _FromSource(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    # As with `python file.py`: its neighbours can be imported.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    _run(file, file, lambda: loader.exec_module(module))
    return module, loader.sha256


def _module_name(path: Path) -> str:
    """Return the module name of the file, but for one that another module has: `json.py` is not the
    `json` that everything else imports."""
    known = sys.modules.get(path.stem)
    is_replaced = known is None or isinstance(getattr(known, "__loader__", None), _FromSource)
    same = getattr(known, "__file__", None) == str(path)
    return path.stem if is_replaced or same else f"{path.stem}_model"


def _run(what: str, file: str, call: Callable[[], Any]) -> Any:
    """Calls the user's code; FB0705 with the last place in their file where it fails."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        mine = [f for f in frames if Path(f.filename).name == Path(file).name]
        notes, hint = tuple(Note(f"{file}:{f.lineno}: {f.line}") for f in mine[-1:]), None
        if isinstance(error, SyntaxError):
            # Of the file, or of one that it imports.
            is_mine = Path(error.filename or file).name == Path(file).name
            place = f"{file if is_mine else error.filename}:{error.lineno}"
            notes = (Note(f"{place}: {(error.text or '').strip()}"),) if error.lineno else ()
            text = f"SyntaxError: {error.msg}"
        elif isinstance(error, SystemExit):
            text = f"it ends the process ({error.code!r})"
            hint = 'put what a script does by itself under `if __name__ == "__main__":`'
        else:
            text = f"{type(error).__name__}: {error}"
        raise FBError(
            Diagnostic("FB0705", f"{what} fails: {text}", notes=notes, hint=hint)
        ) from error


def _need(package: str, extra: str) -> None:
    """FB0712 where an optional package is missing."""
    try:
        import_module(package)
    except ImportError as error:
        hint = f'pip install "remat-compile[{extra}]"'
        message = f"this needs {package}, which cannot be imported ({error})"
        raise FBError(Diagnostic("FB0712", message, hint=hint)) from None


def _usage(code: str, message: str, hint: str | None = None) -> FBError:
    return FBError(Diagnostic(code, message, hint=hint), usage=True)
