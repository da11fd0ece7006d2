"""The commands by name: what each is for, and the function behind it, imported when asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

_COMMANDS_IN = __name__.removesuffix(".shared.commands")

COMMANDS = {
    "fit": "Whether a training step fits a device, what fills it, the largest batch.",
    "verify": "Prove the plan in a file again.",
    "show": "What a plan does: its peak, what fills it, what runs again.",
    "report": "A plan as one HTML page: memory, streams, lifetimes, time by module.",
    "explain": "Why the peak is where it is, or what a tensor costs.",
    "diff": "What two plans keep, recompute and move differently.",
    "run": "Run one step of a plan and compare it with ordinary autograd.",
    "import-plan": "Prove what another tool saves and computes again.",
    "sweep": "The time that planners need under a range of budgets.",
    "pipeline": "Plan a step on several ranks, or check a file of one.",
    "planners": "List the planners, what they take, and their options.",
    "devices": "List the devices that a plan can be made for.",
    "completion": "Print the script that completes this command in a shell.",
}
"""The commands by name, with the line that `--help` shows of each."""


_FUNCTIONS = {
    "report": ("show", "report"),
    "planners": ("lists", "planners"),
    "devices": ("lists", "devices"),
    "completion": ("shared.completion", "command"),
}
"""Module and function of a command that is not `command` in the module of its name."""

ASKED = "_REMAT_COMPILE_COMPLETE"
"""The environment variable in which a shell asks what a line may go on with."""


def function_of(name: str) -> Callable[..., Any]:
    """The function behind a command."""
    module, function = _FUNCTIONS.get(name, (name.replace("-", "_"), "command"))
    found: Callable[..., Any] = getattr(import_module(f"{_COMMANDS_IN}.{module}"), function)
    return found
