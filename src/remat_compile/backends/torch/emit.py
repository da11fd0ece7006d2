"""Schedule -> readable Python source: the code that runs, and that can be saved.

Views are derived where they are first read from the current instance of their base
and dropped after their last use; a `free` is a `del`. So the bytes held while the code
runs are those that the schedule says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from textwrap import wrap

from ..._torch.callable import check_operators
from ..._torch.copies import refuse_copies
from ...ir.graph import CALLER_KINDS
from ...ir.program import Program
from ...ir.schedule import Compute, Schedule
from ...version import __version__
from ..python.allowed import check_generated
from ..python.layout import WIDTH, fitted
from ..python.names import loss_index, symbol_key
from ..python.quote import docstring
from ..views import identities, without_identities
from .allowed import allowed
from .expressions import Expressions
from .function import FunctionBody, Progress
from .interface import Interface, default_interface, saved_at_loss
from .readback import check_source
from .script import IMPORTS, SCRIPT, replay_helper, script_tables, tables_text

__all__ = ["emit", "emit_with_saved"]

_HEADER = '''"""One training step of @{graph} under schedule @{schedule}, as PyTorch code.

{planned}
Both functions run under torch.no_grad(), take a list and empty it; `constants` are tensors that
the model makes from literals.

    forward(args, constants)   gives outputs, then what the backward needs
    backward(args, constants)  gives gradients
{script}"""

'''

_AS_SCRIPT = """
Run as a script, it loads parameters and inputs (from the file named, or the .pt file beside it;
what is not there is made up), runs one step, and prints the measured peak of memory, whether all
results are finite, and whether they are those in the file. `load` says what that file holds.
"""


def emit(program: Program, schedule: Schedule, interface: Interface | None = None) -> str:
    """The source of `forward` and `backward` for a valid schedule, read back and held
    against it; without an interface, a module that can be run as a script.

    Raises FBError FB0901 for an operator that this PyTorch does not have, FB0942 for one
    that a plan may not call, FB0912 for a plan that copies to the host, FB0940 or FB0941
    should the source hold anything but the calls of the plan, and FB0945 or FB0946 where
    it is not the schedule.
    """
    return emit_with_saved(program, schedule, interface)[0]


def emit_with_saved(
    program: Program, schedule: Schedule, interface: Interface | None = None
) -> tuple[str, tuple[str, ...]]:
    """The source as `emit` gives it, and the aNodes that its forward hands to its backward,
    as they were read back from it."""
    source = _written(program, schedule, interface)
    return source, check_source(source, program, schedule, interface)


def _written(program: Program, schedule: Schedule, interface: Interface | None) -> str:
    refuse_copies(schedule.steps)
    check_operators(program.graph)
    given = interface or default_interface(program)
    original, same = program, identities(program.graph)
    program = replace(program, graph=without_identities(program.graph, same))
    given = replace(given, grads=_once(given.grads, same))
    graph = program.graph
    border = loss_index(graph, schedule)
    saved = saved_at_loss(program, schedule)
    symbols = tuple(s.name for s in program.symbols)
    expressions = Expressions(program)
    progress = Progress(
        total=Counter(s.cnode for s in schedule.steps if isinstance(s, Compute)),
        live={a.name for a in graph.anodes if a.kind in CALLER_KINDS},
    )

    notes = _notes(original, same)
    forward = FunctionBody(program, expressions, progress)
    forward.unpack(given.inputs, notes)
    forward.bind_symbols()
    forward.steps(schedule.steps[:border])
    forward.give_back(given.outputs, notes, (*saved, *map(symbol_key, symbols)))

    progress.executions[graph.loss.name] = 1
    progress.live.update(graph.loss.results)
    backward = FunctionBody(program, expressions, progress)
    backward.unpack((*map(symbol_key, symbols), *saved, *given.tangents), notes)
    backward.steps(schedule.steps[border + 1 :])
    backward.give_back(given.grads, notes)

    helper = replay_helper(program)
    parts = [
        _header(program, schedule, is_script=interface is None),
        *_operators(expressions),
        *([helper] if forward.replays or backward.replays else []),
        "\n\ndef forward(args, constants=()):\n" + forward.text(),
        "\n\ndef backward(args, constants=()):\n" + backward.text(),
    ]
    if interface is None:
        parts += ["\n\n", tables_text(script_tables(original, schedule)), "\n", SCRIPT]
    return check_generated("".join(parts), allowed(program, helper))


def _header(program: Program, schedule: Schedule, *, is_script: bool) -> str:
    planned = f"Planned by {schedule.planner}, generated by remat-compile {__version__}."
    head = _HEADER.format(
        graph=docstring(program.graph.name),
        schedule=docstring(schedule.name),
        planned="\n".join(
            wrap(docstring(planned), WIDTH, break_long_words=False, break_on_hyphens=False)
        ),
        script=_AS_SCRIPT if is_script else "",
    )
    return head + (IMPORTS if is_script else "import torch\n") + "\n"


def _operators(expressions: Expressions) -> Iterator[str]:
    for variable, op in expressions.operators.items():
        yield "\n".join((*fitted(f"{variable} = torch.ops.{op}._op"), ""))


def _notes(program: Program, same: Mapping[str, str]) -> dict[str, str]:
    """What crosses the border of the functions, in words of the model."""
    binding = program.binding
    notes = {p.name: ", ".join(p.names) for p in binding.params}
    notes |= {b.name: ", ".join(b.names) for b in binding.buffers}
    notes |= {argument.name: argument.path for argument in binding.arguments}
    notes |= {b.update: f"new {b.names[0]}" for b in binding.buffers if b.update is not None}
    notes |= {r.name: f"output {place}" for place, r in enumerate(binding.results)}
    notes |= {p.grad: f"grad {p.names[0]}" for p in binding.params if p.grad is not None}
    for place, name in binding.input_grads:
        notes[name] = f"grad {binding.arguments[place].path}"
    return {same[name]: note for name, note in notes.items() if name in same} | notes


def _once(grads: tuple[str | None, ...], same: dict[str, str]) -> tuple[str | None, ...]:
    """The gradients without views that change nothing, but no tensor given back twice."""
    plain = [None if g is None else same.get(g, g) for g in grads]
    count = Counter(plain)
    return tuple(p if count[p] == 1 else g for g, p in zip(grads, plain, strict=True))
