"""A plan as code: what `--emit` writes, and the model that belongs to a plan in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...plans.options import Emitted, JaxStyle
from .options import TrustSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...capture.lowered import Exported
    from ...plans.files.files import FileRead
    from ...plans.plan import Plan

Written = Literal[Emitted, "memory-snapshot"]
PICTURES = ("trace", "dot", "memory-snapshot")


@dataclass(frozen=True)
class Code:
    """The options of a plan that is written as code; `source` is that of `--model`."""

    emit: Annotated[
        Written | None,
        typer.Option(
            help="Write the plan as code instead; as a trace (Perfetto), a graph (dot), or what "
            "pytorch.org/memory_viz shows."
        ),
    ] = None
    jax_style: Annotated[
        JaxStyle | None,
        typer.Option(help="How --emit jax writes: every step, or jax.checkpoint by name."),
    ] = None
    source: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="The model of a .fbir file that is written as code."
        ),
    ] = None
    trust_source: TrustSource = False

    def check(self, output: str | None, planned: str) -> None:
        """FB0707 for options that do not go together, or a `--model` that is none, before
        any long work starts; `planned` is the MODEL."""
        from ...ir.diagnostics import Diagnostic, FBError
        from ...plans.source import check_spec, is_program

        if self.emit == "memory-snapshot" and output == "-":
            message = "a memory snapshot is no text, and standard output is for texts"
            raise FBError(Diagnostic("FB0707", message, hint="name a file"), usage=True)
        if self.emit == "jax":
            from ...plans.jax.source import check_output

            if output is not None:
                check_output(output)
            if self.source is None:
                return
            if not is_program(planned):
                message = "--model is for a .fbir file; here the model is planned itself"
                raise FBError(Diagnostic("FB0707", message), usage=True)
            if is_program(self.source):
                message = f"--model {self.source} is a program in text form, not a model"
                raise FBError(Diagnostic("FB0702", message), usage=True)
            check_spec(self.source)
            return
        given = (
            ("--jax-style", self.jax_style),
            ("--model", self.source),
            ("--trust-source", self.trust_source),
        )
        wrong = [name for name, value in given if value]
        if wrong:
            message = f"{' and '.join(wrong)} only {'apply' if wrong[1:] else 'applies'} to code"
            hint = "add --emit jax"
            raise FBError(Diagnostic("FB0707", message + " for JAX", hint=hint), usage=True)

    def check_output(
        self, output: str, reads: Iterable[FileRead], *, all_known: bool = True
    ) -> None:
        """FB0703 and FB0719 where the code, or a plan, may not be written to `output`."""
        from ...plans.files.outputs import check_code, check_output

        if self.emit is None:
            check_output(output, "plan", reads, all_known=all_known)
        elif self.emit in PICTURES:
            check_output(output, "picture", reads, all_known=all_known)
        else:
            has_values = self.emit == "jax" and output.endswith(".py")
            check_code(output, reads, has_values=has_values, all_known=all_known)

    def reads(self) -> tuple[FileRead, ...]:
        """The file of `--model`."""
        from ...plans.files.outputs import files_of_model

        return () if self.source is None else files_of_model(self.source)

    def need(self) -> None:
        """FB0931 where JAX is missing, before any long work starts."""
        if self.emit == "jax":
            from ...backends.jax.check import need_jax

            need_jax()

    def write(self, plan: Plan, output: str, model: str, quiet: bool) -> list[str]:
        """Writes the code; returns the files written."""
        from ...plans.files.files import write_text

        self.check_output(output, plan._reads)
        if self.emit == "memory-snapshot":
            plan.memory_snapshot(output)
            return [output]
        if self.emit != "jax":
            write_text(output, plan.emit(self.emit or "torch"))
            return [output]
        from ...plans.jax.source import write_module
        from .terminal import progress

        with progress(quiet=quiet) as say:
            exported = self._exported(plan, model)
            say("running the step once in PyTorch, for the values it is checked against")
            held, style, reads = plan.trusted(), self.jax_style or "explicit", plan._reads
            values = write_module(held.program, held.schedule, exported, output, style, reads)
        return [output, str(values)]

    def _exported(self, plan: Plan, path: str) -> Exported:
        """The model: the one that was planned here, or the one that the file names."""
        if plan._exported is not None:
            return plan._exported
        from ...plans.files.recorded import load_as_planned, model_of_plan

        header = plan.program.header
        spec = model_of_plan(header, path, self.source, trust_source=self.trust_source)
        return load_as_planned(plan.program, spec).exported
