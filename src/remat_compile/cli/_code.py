"""A plan as code: what `--emit` writes, and the model that belongs to a plan in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._torch.lowered import Exported
    from ..driver.files import FileRead
    from ..driver.plan import Backend, JaxStyle, Plan

__all__ = ["Code"]


@dataclass(frozen=True)
class Code:
    """What `--emit`, `--jax-style`, `--model` and `--trust-source` say."""

    backend: Backend | None
    jax_style: JaxStyle
    model: str | None
    trust_source: bool = False

    def check(self, output: str | None, planned: str, *, given: bool) -> None:
        """FB0707 for options that do not go together, or a `--model` that is none, before
        any long work starts; `planned` is the MODEL."""
        from ..driver.model_source import ModelOptions, check_spec, is_program
        from ..ir.diagnostics import Diagnostic, FBError

        if self.backend == "jax":
            from ..driver.jax.source import check_output

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
        asked = (
            ("--jax-style", given),
            ("--model", self.model),
            ("--trust-source", self.trust_source),
        )
        wrong = [name for name, on in asked if on]
        if wrong:
            message = f"{' and '.join(wrong)} only {'apply' if wrong[1:] else 'applies'} to code"
            hint = "add --emit jax"
            raise FBError(Diagnostic("FB0707", message + " for JAX", hint=hint), usage=True)

    def check_output(
        self, output: str, reads: Iterable[FileRead], *, all_known: bool = True
    ) -> None:
        """FB0703 and FB0719 where the code, or a plan, may not be written to `output`."""
        from ..driver.outputs import check_code, check_output

        if self.backend is None:
            check_output(output, "plan", reads, all_known=all_known)
        else:
            has_values = self.backend == "jax" and output.endswith(".py")
            check_code(output, reads, has_values=has_values, all_known=all_known)

    def reads(self) -> tuple[FileRead, ...]:
        """The file of `--model`."""
        from ..driver.outputs import files_of_model

        return () if self.model is None else files_of_model(self.model)

    def need(self) -> None:
        """FB0931 where JAX is missing, before any long work starts."""
        if self.backend == "jax":
            from ..backends.jax.check import need_jax

            need_jax()

    def write(self, plan: Plan, output: str, model: str, quiet: bool) -> list[str]:
        """Writes the code; returns the files written."""
        from ..driver.files import write_text

        self.check_output(output, plan._reads)
        if self.backend != "jax":
            write_text(output, plan.emit("torch"))
            return [output]
        from ..driver.jax.source import write_module
        from ._progress import progress

        with progress(quiet=quiet) as say:
            exported = self._exported(plan, model)
            say("running the step once in PyTorch, for the values it is checked against")
            held, style, reads = plan.trusted(), self.jax_style, plan._reads
            values = write_module(held.program, held.schedule, exported, output, style, reads)
        return [output, str(values)]

    def _exported(self, plan: Plan, path: str) -> Exported:
        """The model: the one that was planned here, or the one that the file names."""
        if plan._exported is not None:
            return plan._exported
        import torch

        from ..driver.model_source import ModelOptions, check_spec, load_source
        from ..driver.recorded import check_same_file, recorded_model

        header = plan.program.header
        if self.model is None:
            spec = recorded_model(header, path, trust_source=self.trust_source)
        else:
            spec = self.model
            check_spec(spec, ModelOptions())
            check_same_file(header, spec)
        torch.set_num_threads(plan.program.header.threads)
        return load_source(spec, ModelOptions()).exported
