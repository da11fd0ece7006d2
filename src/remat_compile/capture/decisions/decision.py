"""A decision of another tool, and the schedule that does as it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.analysis.order import frees_after_last_use
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.graph import CALLER_KINDS, Graph
from ...ir.schedule import Compute, Free, Schedule, Step


@dataclass(frozen=True)
class Decision:
    """Which forward values are saved for the backward, and the order in which all is computed.

    `by` names the tool with its settings, as a schedule's `by`. `saved` are storages
    (aNodes). `forward` and `backward` are cNodes in the tool's order; a forward one
    in `backward` runs again, or for the first time. `keeps_random_state` says whether a random
    operator that runs again gets the state of its first run. `claimed_bytes` is what the
    tool says it saves (`counts_inputs`: those of the step among them), `limit_bytes` what it
    means to stay within (None: it says nothing).
    """

    by: str
    saved: frozenset[str]
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    keeps_random_state: bool = True
    claimed_bytes: int | None = None
    limit_bytes: int | None = None
    counts_inputs: bool = False


def schedule_of(graph: Graph, decision: Decision, name: str = "plan") -> Schedule:
    """The schedule of a decision: its order, everything freed after its last use.

    FB0480 for every value that the backward needs and that the decision neither saves nor
    computes again. Whether the schedule is right otherwise is for the verifier to say.
    """
    if missing := tuple(_missing(graph, decision)):
        raise FBError(missing)
    order = (*decision.forward, graph.loss.name, *decision.backward)
    steps: tuple[Step, ...] = frees_after_last_use(graph, order)
    if not decision.keeps_random_state:
        steps = _without_states(graph, steps)
    return Schedule(name, decision.by, steps)


def _missing(graph: Graph, decision: Decision) -> Iterator[Diagnostic]:
    """FB0480 where the saved set does not suffice."""
    made = {name for c in decision.forward for name in graph.cnode[c].results}
    there = set(decision.saved) | {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
    there |= set(graph.loss.results)
    runs = dict.fromkeys(decision.forward, 1)
    reported: set[str] = set()
    for step in decision.backward:
        c = graph.cnode[step]
        runs[step] = runs.get(step, 0) + 1
        for name in graph.reads(c, runs[step]):
            if name in there or name in reported:
                continue
            reported.add(name)
            writer = graph.writer[name]
            how = "does not save it" if name in made else "never computes it"
            where = f" ({writer.loc})" if writer.loc is not None else ""
            message = (
                f"{step} needs %{name}, made by {writer.name}{where}, in the backward, but "
                f"{decision.by} {how}, and does not compute it again before"
            )
            hint = f"save %{name}, or recompute {writer.name}"
            yield Diagnostic("FB0480", message, c.span, hint=hint)
        there |= set(c.results_at(runs[step]))


def _without_states(graph: Graph, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same steps, each random state given back right after the first run."""
    tokens = {c.name: c.token for c in graph.cnodes if c.token is not None}
    again = {s.anode for s in steps if isinstance(s, Free)} & set(tokens.values())
    ordered: list[Step] = []
    seen: set[str] = set()
    for step in steps:
        if isinstance(step, Free) and step.anode in again:
            continue
        ordered.append(step)
        if isinstance(step, Compute) and step.cnode not in seen:
            seen.add(step.cnode)
            token = tokens.get(step.cnode)
            if token in again:
                ordered.append(Free(token))
    return tuple(ordered)
