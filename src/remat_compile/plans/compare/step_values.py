"""The tensors of one step of a model in eager, for emitted PyTorch code to be compared with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ...report import MARK
from ..bind import lowered_again
from ..files.files import write_together
from ..files.outputs import check_output

if TYPE_CHECKING:
    from torch import Tensor

    from ...capture.lowered import Exported
    from ...ir.program import Program
    from ...ir.schedule import Schedule
    from ..files.files import FileRead

SEED = 0
"""From which an emitted script draws random numbers."""

Values = dict[str, dict[str, "Tensor"]]
"""By kind and name, as the tables of an emitted script have them."""


def write_step_values(
    program: Program,
    schedule: Schedule,
    exported: Exported,
    path: str | Path,
    reads: Iterable[FileRead],
) -> None:
    """Writes the file that `python step.py FILE` takes. FB0703 and FB0719 where it may not be."""
    check_output(path, "tensors", reads)
    values = step_values(program, schedule, exported)
    import torch

    write_together({path: lambda file: torch.save({MARK: {}, **values}, file)})


def step_values(program: Program, schedule: Schedule, exported: Exported) -> Values:
    """Return the arguments of the step (parameters, buffers, inputs, constants), and the model's
    own results in eager. FB0710 where the model is another than the plan's."""
    import torch

    from ...backends.torch.code.interface import default_interface
    from ...backends.torch.code.script import script_tables
    from ...capture.torch.trust import eager_step
    from ...device.devices import forked_generators

    binding = program.binding
    made: Values = {}

    def keep(kind: object, name: object, tensor: Tensor) -> None:
        made.setdefault(str(kind), {})[str(name)] = tensor.detach().clone()

    with lowered_again(program, exported) as lowered:
        held, constants = lowered.values(), lowered.constants
    rows = script_tables(program, schedule)["INPUTS"]
    assert isinstance(rows, tuple)
    inputs = filter(None, default_interface(program).inputs)
    for name, (kind, called, *_) in zip(inputs, rows, strict=True):
        keep(kind, called, held[name])
    for name, tensor in constants.items():
        keep("const", name, tensor)
    with forked_generators():
        torch.manual_seed(SEED)
        eager = eager_step(exported, program)
    wanted = {f"result {i}": ("output", str(i)) for i, _ in enumerate(binding.results)}
    wanted |= {f"gradient of {p.names[0]}": ("grad", p.names[0]) for p in binding.params}
    for i, _ in binding.input_grads:
        wanted[f"gradient of {binding.arguments[i].path}"] = ("input_grad", str(i))
    wanted |= {
        f"buffer {b.names[0]}": ("new_buffer", b.names[0])
        for b in binding.buffers
        if b.update is not None
    }
    for name, (kind, called) in wanted.items():
        value = eager.get(name)
        if value is not None:
            keep(kind, called, value)
    return made
