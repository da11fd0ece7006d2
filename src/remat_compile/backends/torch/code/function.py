"""The body of one generated function: statements first, then `del`s where views end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ....device.devices import generator_module
from ....ir.graph import Call, CNode, View
from ....ir.program import Program
from ....ir.schedule import Compute, Free, Home, HostFree, Offload, Prefetch, Step, Wait
from ...python.layout import clipped, fitted, one_a_line, wrapped
from ...python.names import symbol_key
from ...python.quote import comment, literal
from .expressions import ADD_IN_PLACE, Expressions

_INDENT = "    "


@dataclass
class Progress:
    """Progress of the schedule: carried from the forward to the backward."""

    total: dict[str, int]
    executions: dict[str, int] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)


@dataclass
class _Statement:
    text: str
    uses: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    comment: str = ""
    note: str = ""
    drops: list[str] = field(default_factory=list)


class FunctionBody:
    """Emits steps in order; views are derived on first use of each instance of their base."""

    def __init__(self, program: Program, expressions: Expressions, progress: Progress):
        self.program = program
        self.graph = program.graph
        self.x = expressions
        self.progress = progress
        self.replays = False
        self._statements: list[_Statement] = []
        self._end: list[str] = []
        self._derived: dict[str, None] = {}
        self._bound: set[str] = set()

    def unpack(self, names: Iterable[str | None], notes: Mapping[str, str]) -> None:
        """Takes each of `names` once from the list that the function is given; `notes` says
        what it is to the model."""
        for place, name in enumerate(names):
            if name is not None and name not in self._bound:
                self._bound.add(name)
                self._say(f"{self.x.variable(name)} = args[{place}]", note=notes.get(name, ""))
        self._say("args.clear()")
        constants = [a.name for a in self.graph.anodes if a.kind == "const"]
        for place, name in enumerate(constants):
            self._say(f"{self.x.variable(name)} = constants[{place}]")

    def bind_symbols(self) -> None:
        """Reads the dynamic dimensions from the shapes of the arguments."""
        for symbol in self.program.symbols:
            argument = self.program.binding.arguments[symbol.argument].name
            self._say(
                f"{self.x.variable(symbol_key(symbol.name))} = "
                f"{self.x.variable(argument)}.shape[{symbol.dim}]"
            )

    def steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            match step:
                case Free(name):
                    self._free(name)
                case Compute(name, _, True):
                    self._say(f"copies.update_on_host({literal(name)})", comment=f"{name} on host")
                case Compute(name, nosave):
                    self._compute(self.graph.cnode[name], nosave)
                case Offload(name):
                    self._say(f"copies.offload({literal(name)}, {self.x.variable(name)})")
                case Prefetch(name):
                    self._say(f"{self.x.variable(name)} = copies.prefetch({literal(name)})")
                    self.progress.live.add(name)
                    self._bound.add(name)
                case Wait(name) | HostFree(name):
                    self._say(f"copies.{step.word}({literal(name)})")
                case Home():
                    pass
                case _:
                    assert_never(step)

    def _free(self, name: str) -> None:
        self.progress.live.discard(name)
        self._forget_views(name)
        # What only the other function holds (new buffer contents) ends with that function.
        if name in self._bound:
            self._bound.discard(name)
            self._statements[-1].drops.append(self.x.variable(name))

    def give_back(
        self, names: Sequence[str | None], notes: Mapping[str, str], saved: Iterable[str] = ()
    ) -> None:
        """Returns `names` and what is saved, one a line."""
        parts = []
        for name in names:
            self._derive_if_view(name)
            note = notes.get(name or "")
            value = "None" if name is None else self.x.variable(name)
            parts.append(f"{value},  # {comment(note)}" if note else f"{value},")
        kept = [f"{self.x.variable(name)}," for name in saved]
        parts += ["# for the backward", *kept] if kept else []
        uses = tuple(name for name in names if name in self.graph.view)
        self._drop_views_after_last_use({*uses})
        self._end = one_a_line("return (", parts, ")", _INDENT)

    def text(self) -> str:
        """The body; `give_back` was the last to be called."""
        lines = []
        for s in self._statements:
            if s.comment:
                lines.append(clipped(f"{_INDENT}# {comment(s.comment)}"))
            lines += fitted(s.text, _INDENT)
            if s.note:
                lines[-1] = clipped(f"{lines[-1]}  # {comment(s.note)}")
            if s.drops:
                lines += wrapped(f"{_INDENT}del ", dict.fromkeys(s.drops))
        return "\n".join((*lines, *self._end)) + "\n"

    # -- one computation --------------------------------------------------------------

    def _compute(self, c: CNode, nosave: bool) -> None:
        p = self.progress
        n = p.executions[c.name] = p.executions.get(c.name, 0) + 1
        comment = " ".join(filter(None, (c.name, "again" if n > 1 else "", str(c.loc or ""))))
        if c.is_accumulate:
            self._accumulate(c, comment)
            return
        if c.is_update:
            self._update(c, comment)
            return
        call = c.call_at(n)
        for name in call.refs():
            self._derive_if_view(name)
        if c.token is not None and n == 1 and p.total[c.name] > 1:
            p.live.add(c.token)
            self._bound.add(c.token)
            self._say(f"{self.x.variable(c.token)} = {self._get_state()}")
        targets, dropped = self._targets(c, n)
        text = f"{targets} = {self._invoke(c, call, n)}"
        self._say(text, call.refs(), comment=comment, drops=dropped)
        for name in c.results_at(n):
            self._forget_views(name)
            if name not in p.live:
                self._bound.add(name)
                p.live.add(name)
        if nosave:
            phantoms = [r for r in c.results_at(n) if self.graph.anode[r].kind == "phantom"]
            self.steps(Free(name) for name in phantoms)

    def _invoke(self, c: CNode, call: Call, n: int) -> str:
        if c.is_fused:
            return self.x.fused(c)
        if c.token is None or n == 1:
            return self.x.call(call)
        self.replays = True
        state, op = self.x.variable(c.token), self.x.operator(call.op)
        return f"replay({', '.join((state, op, *self.x.arguments(call)))})"

    def _targets(self, c: CNode, n: int) -> tuple[str, list[str]]:
        """The left-hand side; unused results, and those still alive, are dropped at once."""
        writes = c.writes if n == 1 or c.replay is None else c.replay.writes
        names, dropped = [], []
        for index, name in enumerate(writes):
            if name is None or name in self.progress.live:
                names.append(f"_{index}")
                dropped.append(f"_{index}")
            else:
                names.append(self.x.variable(name))
        if self.x.returns_tuple(c.call_at(n).op):
            return f"({', '.join(names)},)", dropped
        return names[0], dropped

    def _accumulate(self, c: CNode, comment: str) -> None:
        ended, added = c.call.refs()
        (named,) = c.results
        self._derive_if_view(added)
        before, after = self.x.variable(ended), self.x.variable(named)
        add = self.x.operator(ADD_IN_PLACE)
        self._say(
            f"{after} = {add}({before}, {self.x.variable(added)})",
            (added,),
            comment=comment,
            drops=[before],
        )
        self.progress.live.discard(ended)
        self.progress.live.add(named)
        self._bound.discard(ended)
        self._bound.add(named)
        self._forget_views(ended)
        self._forget_views(named)

    def _update(self, c: CNode, comment: str) -> None:
        """An update of the tensors at hand: the first ones go on under new names."""
        for name in c.call.refs():
            self._derive_if_view(name)
        given = ", ".join((literal(c.name), *map(self.x.variable, c.operands)))
        named = ", ".join(map(self.x.variable, c.results))
        old = [ended for ended, _ in c.takes_over]
        self._say(
            f"({named},) = copies.update({given})",
            c.call.refs(),
            comment=comment,
            drops=[self.x.variable(name) for name in old],
        )
        for name in old:
            self._forget_views(name)
        self.progress.live.difference_update(old)
        self._bound.difference_update(old)
        self.progress.live.update(c.results)
        self._bound.update(c.results)

    def _get_state(self) -> str:
        return f"{generator_module(self.program.header.device)}.get_rng_state()"

    # -- views ------------------------------------------------------------------------

    def _derive_if_view(self, name: str | None) -> None:
        if name in self.graph.view:
            for view in self.graph.views_below(name, self._derived):
                self._derive(view)

    def _derive(self, view: View) -> None:
        if view.name in self._derived:  # a part of what was taken apart for another
            return
        parts = self.graph.parts[view.name] if view.index is not None else {0: view.name}
        views = [self.graph.view[name] for name in parts.values()]
        taken = self.x.taken(views)
        self._say(
            f"{taken} = {self.x.view(views)}",
            view.call.refs(),
            defines=tuple(parts.values()),
            drops=["_"] if "_" in taken.strip("(,)").split(", ") else (),
        )
        self._derived.update(dict.fromkeys(parts.values()))

    def _forget_views(self, base: str) -> None:
        for name in [v for v in self._derived if self.graph.view[v].base == base]:
            del self._derived[name]

    def _drop_views_after_last_use(self, later: set[str]) -> None:
        """Each view ends where it is read last; those of `later` are returned."""
        for statement in reversed(self._statements):
            views = [n for n in statement.uses if n in self.graph.view]
            views += statement.defines
            ended = [n for n in views if n not in later]
            statement.drops[:0] = [self.x.variable(n) for n in ended]
            later.update(views)
            later.difference_update(statement.defines)

    def _say(
        self,
        text: str,
        uses: Iterable[str] = (),
        *,
        defines: tuple[str, ...] = (),
        comment: str = "",
        note: str = "",
        drops: Iterable[str] = (),
    ) -> None:
        self._statements.append(_Statement(text, tuple(uses), defines, comment, note, list(drops)))
