"""One model at sizes of a range: a symbol of a program, an open dimension of an ONNX file, or a
parameter of the function that makes the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, FBError
from ..budget import Baseline
from ..make import costed_program
from ..source import is_program
from .size_range import BATCH, SizeRange
from .to_fit import program_of

if TYPE_CHECKING:
    from ...ir.program import Program
    from ..request import PlanRequest
    from ..run_planner import Phases
    from ..source import ModelOptions


@dataclass
class SizedModel:
    """Programs with their costs by size, each made once. `has_times` is False where times are those
    of one size."""

    range: SizeRange
    make: Callable[[int], Program]
    has_times: bool = True
    made: dict[int, Program] = field(default_factory=dict)
    bases: dict[int, Baseline] = field(default_factory=dict)

    def at(self, size: int) -> Program:
        if size not in self.made:
            self.made[size] = self.make(size)
        return self.made[size]

    def baseline(self, size: int) -> Baseline:
        if size not in self.bases:
            self.bases[size] = Baseline.of(self.at(size))
        return self.bases[size]


def takes_sizes(model: str) -> bool:
    """Return whether MODEL is captured at the sizes of `--dim`."""
    return not is_program(model) and not model.endswith(".pt2")


def sized_model(
    model: str,
    request: PlanRequest,
    options: ModelOptions,
    over: SizeRange,
    phases: Phases,
) -> SizedModel:
    """MODEL at any size of `over`. FB0973 for a name that it does not have."""
    if takes_sizes(model):
        over = named_dimension(model, over)

        def captured(size: int) -> Program:
            dims = {**options.dims, over.name: str(size)}
            return program_of(model, request, replace(options, dims=dims), phases)

        return SizedModel(over, captured)
    program = program_of(model, request, options, phases)
    named = _named_symbol(program, over)

    def estimated(size: int) -> Program:
        return costed_program(at_size(program, named.name, size), request, phases)

    return SizedModel(named, estimated, has_times=request.device is not None)


def named_dimension(model: str, over: SizeRange) -> SizeRange:
    """The range, named as the ONNX file names its first dimension where it has no "batch"."""
    if not model.endswith(".onnx") or over.name != BATCH:
        return over
    import onnx

    from ...capture.onnx.dims import dims_of

    try:
        inputs = dims_of(onnx.load(model, load_external_data=False).graph)
    except Exception:  # who builds the model says what is wrong with the file
        return over
    names = {name for dims in inputs.values() for name in dims}
    first = next((dims[0] for dims in inputs.values() if dims and isinstance(dims[0], str)), BATCH)
    return over if BATCH in names else replace(over, name=str(first))


def _named_symbol(program: Program, over: SizeRange) -> SizeRange:
    names = [s.name for s in program.symbols]
    name = names[0] if over.name == BATCH and len(names) == 1 else over.name
    symbol = next((s for s in program.symbols if s.name == name), None)
    if symbol is None:
        known = ", ".join(names) or "none"
        message = f'the program has no symbol "{over.name}" (there are: {known})'
        hint = "capture the model with dynamic_shapes, or name a factory that takes the size"
        raise FBError(Diagnostic("FB0973", message, hint=hint), usage=True)
    if not symbol.low <= over.low <= over.high <= symbol.high:
        message = f"{name} is captured for {symbol.low}..{symbol.high}, and {over} was asked for"
        raise FBError(Diagnostic("FB0973", message, hint="ask for less"), usage=True)
    return replace(over, name=name)


def at_size(program: Program, name: str, size: int) -> Program:
    """The program for sizes up to this one, which becomes its sample."""
    symbols = tuple(
        replace(s, high=size, sample=size) if s.name == name else s for s in program.symbols
    )
    return replace(program, symbols=symbols)
