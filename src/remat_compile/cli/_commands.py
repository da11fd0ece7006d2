"""The commands by name, with the line that `--help` shows of each."""

__all__ = ["COMMANDS"]

COMMANDS = {
    "verify": "Prove the plan in a file again.",
    "show": "What a plan does: its peak, what fills it, what runs again.",
    "run": "Run one step of a plan and compare it with ordinary autograd.",
    "import-plan": "Prove what another tool saves and computes again.",
    "sweep": "The time that planners need under a range of budgets.",
    "planners": "List the planners, what they take, and their options.",
    "devices": "List the devices that a plan can be made for.",
}
