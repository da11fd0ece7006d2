"""remat-compile: plan, prove and run one training step under a budget in bytes.

The names below are loaded when they are first used, so that `import remat_compile`
costs a few milliseconds and pulls in no framework and no solver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .version import __version__

if TYPE_CHECKING:
    from .api import adaptive, compile, compile_in_place, load, pipeline, plan, sweep
    from .ir.diagnostics import Diagnostic, FBError
    from .ir.program import Budget
    from .plans.decisions import import_plan
    from .plans.jax.make import jax_step
    from .plans.plan import Plan
    from .plans.sweep.sweep import Sweep

__all__ = [
    "Budget",
    "Diagnostic",
    "FBError",
    "Plan",
    "Sweep",
    "__version__",
    "adaptive",
    "compile",
    "compile_in_place",
    "import_plan",
    "jax_step",
    "load",
    "pipeline",
    "plan",
    "sweep",
]

_HOMES = {
    "Budget": ".ir.program",
    "Diagnostic": ".ir.diagnostics",
    "FBError": ".ir.diagnostics",
    "Plan": ".plans.plan",
    "Sweep": ".plans.sweep.sweep",
    "adaptive": ".api",
    "compile": ".api",
    "compile_in_place": ".api",
    "import_plan": ".plans.decisions",
    "jax_step": ".plans.jax.make",
    "load": ".api",
    "pipeline": ".api",
    "plan": ".api",
    "sweep": ".api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
