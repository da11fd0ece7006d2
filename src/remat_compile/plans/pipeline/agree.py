"""One plan for all ranks that share the parameters of a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...device.shards import Shards, is_sharded
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.text.parser import parse_program
from ...ir.text.printer import format_program
from ..compare.graph import graph_differences
from ..plan import Plan

if TYPE_CHECKING:
    from ...capture.lowered import Exported


def on_all_ranks(exported: Exported, make: Callable[[], Plan]) -> Plan:
    """The plan that rank 0 makes, which each rank proves for itself; what `make` gives where
    nothing is shared. All ranks raise what one is refused, and FB0557 where one has another step.
    """
    first = next(exported.original.parameters())
    if not is_sharded(first):
        return make()
    from ...backends.torch.pipeline.transport import from_first, gathered
    from ...operators.instances import plain_mode

    group = Shards.of(first).group

    def together(run: Callable[[], Plan]) -> Plan:
        """No rank goes on, or waits for another, where one fails."""
        made, refused = None, None
        try:
            made = run()
        except FBError as error:
            refused = error
        told = [] if refused is None else [(d.code, d.message, d.hint) for d in refused.diagnostics]
        with plain_mode(first.device):  # a capture is open
            answers = gathered(group, json.dumps(told))
        for each in map(json.loads, answers):
            if each and refused is None:
                refused = FBError(Diagnostic(code, why, hint=hint) for code, why, hint in each)
        if refused is not None:
            raise refused
        assert made is not None
        return made

    mine = together(make)
    text = format_program(mine.trusted().program)
    with plain_mode(first.device):
        shared = from_first(group, text)
    return together(lambda: mine if shared == text else _taken(mine, shared or text))


def _taken(mine: Plan, text: str) -> Plan:
    """The plan in rank 0's text, proven here (FB0714)."""
    program = parse_program(text, "rank 0's plan")
    if different := graph_differences(program, mine.program):
        message = f"this rank has another step than rank 0: {different[0]}"
        hint = "give every rank the same model, shapes and version of torch"
        raise FBError(Diagnostic("FB0557", message, hint=hint))
    schedule = program.schedules[-1]
    return replace(mine, program=program, schedule=schedule, _is_proven=False).trusted()
