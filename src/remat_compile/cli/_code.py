"""A plan as code: what `--emit` writes, and the model that belongs to a plan in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._plan import Backend, JaxStyle, Plan
    from .._torch.lowered import Exported

__all__ = ["Code", "check_same_file", "recorded_model"]


@dataclass(frozen=True)
class Code:
    """What `--emit`, `--jax-style` and `--model` say."""

    backend: Backend | None
    jax_style: JaxStyle
    model: str | None

    def check(self, output: str | None, planned: str, *, given: bool) -> None:
        """FB0707 for options that do not go together, or a `--model` that is none, before
        any long work starts; `planned` is the MODEL."""
        from .._sources import ModelOptions, check_spec, is_program
        from ..ir.diagnostics import Diagnostic, FBError

        if self.backend == "jax":
            from .._jax.source import check_output

            if output is not None:
                check_output(output)
            if self.model is None:
                return
            if not is_program(planned):
                message = "--model is for a .fbir file; here the model is planned itself"
                raise FBError(Diagnostic("FB0707", message), usage=True)
            if is_program(self.model):
                message = f"--model {self.model} is a program in text form, not a model"
                raise FBError(Diagnostic("FB0702", message), usage=True)
            check_spec(self.model, ModelOptions())
            return
        wrong = [name for name, on in (("--jax-style", given), ("--model", self.model)) if on]
        if wrong:
            message = f"{' and '.join(wrong)} only {'apply' if wrong[1:] else 'applies'} to code"
            hint = "add --emit jax"
            raise FBError(Diagnostic("FB0707", message + " for JAX", hint=hint), usage=True)

    def need(self) -> None:
        """FB0931 where JAX is missing, before any long work starts."""
        if self.backend == "jax":
            from ..backends.jax.check import need_jax

            need_jax()

    def write(self, plan: Plan, output: str, model: str, quiet: bool) -> list[str]:
        """Writes the code; returns the files written."""
        from .._files import write_text

        if self.backend != "jax":
            write_text(output, plan.emit("torch"))
            return [output]
        from .._jax.source import write_module
        from ._progress import progress

        with progress(quiet=quiet) as say:
            exported = self._exported(plan, model)
            say("running the step once in PyTorch, for the values it is checked against")
            values = write_module(plan, exported, output, self.jax_style)
        return [output, str(values)]

    def _exported(self, plan: Plan, path: str) -> Exported:
        """The model: the one that was planned here, or the one that the file names."""
        if plan._exported is not None:
            return plan._exported
        import torch

        from .._sources import ModelOptions, check_spec, load_source

        spec = self.model if self.model is not None else recorded_model(plan, path)
        check_spec(spec, ModelOptions())
        check_same_file(plan, spec)
        torch.set_num_threads(plan.program.header.threads)
        return load_source(spec, ModelOptions()).exported


def recorded_model(plan: Plan, path: str) -> str:
    """The model's file next to the plan. FB0709 where none is recorded or found."""
    from pathlib import Path

    from .._sources import file_of
    from ..ir.diagnostics import Diagnostic, FBError

    name = plan.program.header.source
    if name is None:
        message = "the plan does not record a model file"
        raise FBError(Diagnostic("FB0709", message, hint="give --model MODEL"), usage=True)
    for folder in (Path(path).parent, Path()):
        if (folder / file_of(name)).is_file():
            return str(folder / name)
    message = f"the model {name} is not beside the plan"
    raise FBError(Diagnostic("FB0709", message, hint="give --model MODEL"), usage=True)


def check_same_file(plan: Plan, spec: str) -> None:
    """FB0715 where the file is not the one that was planned, by its hash."""
    from .._files import sha256_of
    from .._sources import file_of
    from ..ir.diagnostics import Diagnostic, FBError, Note

    recorded = plan.program.header.sha256
    if recorded is None:
        return
    found = sha256_of(file_of(spec))
    if found != recorded:
        notes = (Note(f"planned: sha256 {recorded}"), Note(f"now:     sha256 {found}"))
        message = f"{file_of(spec)} has changed since the plan was made"
        raise FBError(Diagnostic("FB0715", message, notes=notes, hint="plan the model again"))
