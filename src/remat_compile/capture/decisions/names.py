"""A list of `jax.checkpoint` names: those values are saved, the rest is computed again.

In JAX, `checkpoint_name(x, "attn")` names a value, and
`jax.checkpoint(f, policy=save_only_these_names("attn"))` saves the values of these names in
`f`. Here a name stands for an aNode or a view, or for the results of the modules whose
path matches it; the functions under `jax.checkpoint` are modules too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from ...ir.diagnostics import Diagnostic, FBError, nearest
from ...ir.graph import CNode, Graph
from ...ir.program import Program
from .decision import Decision
from .regions import Region, decide_regions

WHOLE = "the whole forward"
MOST_NAMES = 8
"""Limit on the modules that a message names."""


def decide_names(program: Program, names: Sequence[str], segments: Sequence[str]) -> Decision:
    """The decision of saving `names` in the `segments` (patterns of module paths, as in
    `blocks.*`; none: one segment around the whole forward).

    A name is written `NAME`, or `NAME=PATTERN` where the graph calls it something else.
    FB0481 for each that matches nothing, FB0482 for segments that overlap.
    """
    graph = program.graph
    problems: list[Diagnostic] = []
    saved: set[str] = set()
    for text in names:
        name, _, pattern = text.partition("=")
        matched = set(_values(graph, pattern or name))
        if not matched:
            problems.append(_unknown(graph, pattern or name))
        saved |= matched
    regions = _regions(graph, segments, problems)
    if problems:
        raise FBError(problems)
    with_saved = [Region(r.name, r.cnodes, frozenset(saved & _made(graph, r))) for r in regions]
    chosen = ", ".join(names) or "nothing"
    by = f"jax-names{{save={chosen}; segments={', '.join(segments) or 'all'}}}"
    return decide_regions(program, with_saved, by)


def _made(graph: Graph, region: Region) -> set[str]:
    return {name for c in region.cnodes for name in graph.cnode[c].results}


def _path(c: CNode) -> str:
    return "" if c.loc is None else ".".join(c.loc.modules)


def module_of(c: CNode, pattern: str) -> str | None:
    """The module matched by `pattern` that this cNode runs in: `blocks.0` for `blocks.*`
    and `blocks.0.attn.qkv`."""
    parts, wanted = _path(c).split("."), pattern.split(".")
    if len(parts) < len(wanted):
        return None
    fits = all(fnmatchcase(a, b) for a, b in zip(parts, wanted, strict=False))
    return ".".join(parts[: len(wanted)]) if fits else None


def matching_cnodes(graph: Graph, patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of the forward cNodes of the modules that match one of the patterns. FB0489 for
    each pattern that matches none."""
    forward = list(graph.in_phase("fwd"))
    matched = {p: [c.name for c in forward if module_of(c, p) is not None] for p in patterns}
    known = sorted({*_modules(map(_path, forward))} - {""})
    named = ", ".join(known[:MOST_NAMES]) + ", …" * (len(known) > MOST_NAMES)
    problems = [
        Diagnostic(
            "FB0489",
            f"no operator of the forward is in a module {pattern}.{nearest(pattern, known)}",
            hint=f"the modules are {named}",
        )
        for pattern, names in matched.items()
        if not names
    ]
    if problems:
        raise FBError(problems, usage=True)
    wanted = {name for names in matched.values() for name in names}
    return tuple(c.name for c in forward if c.name in wanted)


def _values(graph: Graph, pattern: str) -> Iterator[str]:
    """aNodes of that name, and the results of the modules that match."""
    if pattern in graph.storage:
        yield graph.storage[pattern]
        return
    for c in graph.in_phase("fwd"):
        module = module_of(c, pattern)
        if module is None:
            continue
        for name in c.results:
            outside = [r for r in graph.readers[name] if r.phase in ("fwd", "loss")]
            if any(module_of(r, pattern) != module for r in outside):
                yield name


def _regions(graph: Graph, segments: Sequence[str], problems: list[Diagnostic]) -> list[Region]:
    forward = list(graph.in_phase("fwd"))
    if not segments:
        return [Region(WHOLE, frozenset(c.name for c in forward))]
    by_module: dict[str, set[str]] = {}
    owner: dict[str, str] = {}
    for pattern in segments:
        matched = [(c, m) for c in forward if (m := module_of(c, pattern)) is not None]
        if not matched:
            problems.append(_unknown(graph, pattern, "segment"))
        for c, module in matched:
            other = owner.setdefault(c.name, pattern)
            if other != pattern:
                message = f"{c.name} ({_path(c)}) is in the segments {other} and {pattern}"
                hint = "segments may not overlap; leave one of them out"
                problems.append(Diagnostic("FB0482", message, c.span, hint=hint))
                break
            by_module.setdefault(module, set()).add(c.name)
    return [Region(name, frozenset(cnodes)) for name, cnodes in by_module.items()]


def _unknown(graph: Graph, pattern: str, what: str = "name") -> Diagnostic:
    known = {*graph.storage, *_modules(map(_path, graph.in_phase("fwd")))}
    message = f"{what} {pattern} is no value and no module of the graph.{nearest(pattern, known)}"
    hint = 'give the path of a module, such as "blocks.*"'
    if what == "name":
        hint = 'write NAME=PATTERN with the path of a module, such as "attn=blocks.*.attn"'
    return Diagnostic("FB0481", message, hint=hint)


def _modules(paths: Iterable[str]) -> Iterator[str]:
    """Every module path with those of the modules around it."""
    for path in dict.fromkeys(paths):
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            yield ".".join(parts[:depth])
