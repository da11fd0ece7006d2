"""The whitelist of generated JAX code, in each of its two forms."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from ....ir.graph import Graph
from ...python.allowed import LITERAL, Allowed, statements
from ...python.names import called_operators
from ...python.regions import regions_of
from ..dtypes import JAX_DTYPES
from .template import ANNOTATED_RUN, CHECK, IMPORTS, KEEP, RUN
from .text import function_name

NAMED_IMPORT = "from jax.ad_checkpoint import checkpoint_name\n"
_TABLES = ("NEEDS_X64", "RANDOM", "SEED", "TOLERANCE", "KINDS", "ARGUMENTS", "RESULTS")
_NAME_LISTS = ("KEPT", "OFFLOADED")
_CALLER = "params, buffers, args, key=None"
_CALLED = ("max", "float", "lax.optimization_barrier", "jax.device_put", "jnp.zeros")
_FOLD_IN = "jax.random.fold_in"
_CHECKPOINT = "jax.checkpoint"


def segment_name(number: int) -> str:
    """The function of the n-th segment (from 1) of an annotated module."""
    return f"segment_{number}"


def allowed(lowerings: str, graph: Graph) -> Allowed:
    """The table for the explicit form; `lowerings` is the text of all operators of the graph."""
    regions = regions_of(graph)
    operators = map(function_name, called_operators(graph))
    spaces = ("jax.memory.Space.Host", "jax.memory.Space.Device")
    dtypes = (f"jnp.{name}" for name in JAX_DTYPES.values())
    return Allowed(
        fixed=statements(IMPORTS) | statements(lowerings) | statements(RUN) | statements(CHECK),
        tables=frozenset(_TABLES),
        signatures={
            **{name: regions.signature(name) for name in regions.functions},
            "forward": _CALLER,
            "backward": "saved, tangents",
        },
        called=frozenset((*_CALLED, _FOLD_IN, *regions.functions, *operators)),
        values=frozenset(("bool", *spaces, *dtypes)),
        context="jax.named_scope",
    )


def allowed_annotated(lowerings: str, graph: Graph) -> Allowed:
    """The table for the form with `jax.checkpoint`."""
    explicit = allowed(lowerings, graph)
    once = (IMPORTS, NAMED_IMPORT, lowerings, KEEP, CHECK)
    return replace(
        explicit,
        fixed=frozenset().union(*map(statements, once)),
        templates=tuple(ast.parse(ANNOTATED_RUN.format(inputs=LITERAL, without=LITERAL)).body),
        tables=frozenset((*_TABLES, *_NAME_LISTS)),
        signatures={
            **{n: s for n, s in explicit.signatures.items() if n not in ("forward", "backward")},
            "model": _CALLER,
        },
        called=explicit.called | {"checkpoint_name", _CHECKPOINT},
        values=explicit.values | {"KEEP"},
        segment=re.compile(r"segment_\d+"),
        wrapper=_CHECKPOINT,
    )


def defined_names(source: str) -> frozenset[str]:
    """Every name that a source text binds at its top level."""
    defined: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.Assign(targets=targets):
                defined.update(t.id for t in targets if isinstance(t, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                defined.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                defined.update((alias.asname or alias.name).split(".")[0] for alias in names)
    return frozenset(defined)


MODULE_NAMES = frozenset((*_TABLES, *_NAME_LISTS)).union(
    *map(defined_names, (IMPORTS, NAMED_IMPORT, KEEP, RUN, CHECK))
)
"""Names that a generated module binds besides its lowerings: no variable is named so."""
