"""Faults in our own trusted modules: is a wrong plan ever proven?

`mutants_of` changes one thing in the syntax tree of a module (a comparison, a branch, a
statement, a number, an element), `try_fault` runs the changed module in a child process on
plans that are wrong, and on right ones whose numbers are known.
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Literal

from helpers.paths import CONFORMANCE, ROOT, TESTS
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier import Disagreement, Largest, ProvenPlan, prove_largest, verify
from remat_compile.verifier.answer import Deadline
from remat_compile.verifier.solvers.z3 import Z3

__all__ = ["CHECKER", "MODULES", "Entry", "Outcome", "corpus", "entries_for", "mutants_of"]
__all__ += ["ask_all", "remember_answers", "try_fault"]

SOURCE = ROOT / "src" / "remat_compile"
LIMIT_S = 20
"""Of processor time, for all plans under one fault."""
KINDS: tuple[Literal["device", "activation", "host"], ...] = ("device", "activation", "host")
CHECKER = tuple(
    f"verifier/check/{name}.py"
    for name in ("check", "clock", "graph", "machine", "packs", "sizes", "read")
)
MODULES = (
    *(f"verifier/read/{name}.py" for name in ("statements", "events", "packs", "sizes")),
    *(f"verifier/obligations/{name}.py" for name in ("validity", "memory", "races", "values")),
    *(f"verifier/obligations/{name}.py" for name in ("claims", "memory_ranges", "largest")),
    *(f"verifier/arithmetic/{name}.py" for name in ("walk", "profile", "terms", "intervals")),
    *("verifier/plan_proof.py", "verifier/smt.py"),
    *(
        "ir/text/parser.py",
        "ir/text/regular.py",
        "ir/text/rules.py",
        "ir/text/rules_calls.py",
    ),
    *("ir/text/printer.py", *CHECKER),
)

HARMLESS = {
    "fb0221_both_above_the_sum",
    "fb0221_layout_of_an_updated_buffer",
    "fb0942_unknown_to_the_table",
    *("fb0201_unknown_forward", "fb0201_unknown_schedule", "fb0202_parameter_name_twice"),
    *("fb0206_phantom_in_forward", "fb0209_of_backward", "fb0209_of_in_forward"),
    *("fb0213_no_such_argument", "fb0213_no_such_dimension", "fb0213_other_dimension"),
    *("fb0214_python_literal", "fb0215_negative_size", "fb0218_bound_twice"),
    *("fb0218_unbound_buffer", "fb0219_unknown_type", "fb0220_reserved_symbol"),
    *(
        "fb0221_both_below_one_way",
        "fb0221_no_threads",
        "fb0221_too_many_threads",
        "fb0221_too_much_memory",
    ),
    *("fb0222_argument_beyond_64_bits", "fb0223_constant_product", "fb0223_product_beyond_range"),
    *("fb0224_sizes_together", "fb0224_times_together", "fb0225_out_argument"),
    *("fb0231_too_few_bytes",),
}
"""Files that the language refuses for another reason than what a proof says: about names for
people, the binding to a model, how a symbol is measured, how large numbers may be, element types,
or an operator that there is not. The plan in them does what it must."""

SHORT = ("symbols", "offload", "homes", "accumulate", "batchnorm", "mlp", "right")
"""Right plans whose budgets are asked a byte short: copies, symbols, replays, accumulation."""


@dataclass(frozen=True)
class Entry:
    """A plan; `peak` and `time_ns` are None where nothing at all may be proven of it."""

    name: str
    text: str
    program: Program
    budgets: tuple[Budget, ...] = ()
    peak: tuple[int, int, int] | None = None
    top: tuple[int, int, int] | None = None
    """Of all sizes in the ranges, where it was proven."""
    time_ns: int = 0
    least: tuple[int, int] = (0, 0)
    schedule: int = 0
    largest: tuple[str, int] | None = None
    """The largest value of a symbol that holds the budgets; asked for in place of a proof."""

    def wrongly(self, verdict: Any) -> bool:
        """Whether a verdict says what is not so."""
        if type(verdict).__name__ == "Largest" and self.largest is not None:
            return bool(verdict.value > self.largest[1])
        if type(verdict).__name__ != "ProvenPlan":
            return False
        if self.peak is None:
            return True
        c = verdict.proven.certificate
        low = any(a < b for a, b in zip(_bytes(verdict.bounds[0]), self.peak, strict=True))
        widest = verdict.bounds[-1]
        if self.top is not None and widest.everywhere:
            low = low or any(a < b for a, b in zip(_bytes(widest), self.top, strict=True))
        claims = c.time_ns != self.time_ns or c.least_time_ns > self.least[0]
        return low or claims or c.least_bytes > self.least[1]


@dataclass(frozen=True)
class Outcome:
    """`alone`: plans of which one side says what is not so; `together`: of which both do."""

    fault: str
    alone: tuple[str, ...]
    together: tuple[str, ...]
    finished: bool = True
    """Not where the changed module fell over as it was imported, or ran too long: told apart."""


def _bytes(bound: Any) -> tuple[int, int, int]:
    return bound.device_bytes, bound.activation_bytes, bound.host_bytes


@cache
def corpus() -> tuple[Entry, ...]:
    """Plans of the conformance files, of documented bugs and races, and budgets a byte short."""
    entries: list[Entry] = []
    paths = [*sorted((CONFORMANCE / "invalid").glob("fb0[23]*.fbir"))]
    paths += [
        *sorted((CONFORMANCE / "valid").glob("*.fbir")),
        *sorted((TESTS / "verifier" / "races").glob("*")),
    ]
    paths += [TESTS / "verifier" / "bugs" / "dropout_redrawn.fbir"]
    for path in paths:
        if path.stem in HARMLESS:
            continue
        text = path.read_text(encoding="utf-8")
        try:
            program = read_syntax(text, path.name)
        except FBError:
            continue
        for index, schedule in enumerate(program.schedules):
            name = f"{path.stem}@{schedule.name}"
            entries += _entries(Entry(name, text, program, schedule=index))
    return tuple(entries)


def _entries(entry: Entry) -> Iterator[Entry]:
    verdict = verify(entry.program, entry.program.schedules[entry.schedule], text=entry.text)
    if isinstance(verdict, Disagreement):
        return  # the text contradicts itself, which the parser says and `read_syntax` does not
    if not isinstance(verdict, ProvenPlan):
        yield entry
        return
    c = verdict.proven.certificate
    assert c is not None
    peak, widest = _bytes(verdict.bounds[0]), verdict.bounds[-1]
    top = _bytes(widest) if widest.everywhere else None
    least = (c.least_time_ns, c.least_bytes)
    yield replace(entry, peak=peak, top=top, time_ns=c.time_ns, least=least)
    for count, kind in zip(peak, KINDS, strict=True):
        if count and entry.name.split("@")[0] in SHORT:
            short = (Budget(count - 1, kind),)
            yield replace(entry, name=f"{entry.name} {kind} short", budgets=short)
    for symbol in entry.program.symbols:
        budgets = tuple(Budget(n, k) for n, k in zip(peak, KINDS, strict=True))
        schedule = entry.program.schedules[entry.schedule]
        answer = prove_largest(entry.program, schedule, budgets, symbol.name, text=entry.text)
        if isinstance(answer, Largest):
            largest = (symbol.name, answer.value)
            name = f"{entry.name} largest {symbol.name}"
            yield replace(entry, name=name, budgets=budgets, largest=largest)
    for claim in (replace(c, time_ns=c.time_ns + 1), replace(c, least_bytes=c.least_bytes + 1)):
        claimed = replace(verdict.proven, certificate=claim)
        program = replace(entry.program, proven=(claimed,))
        yield replace(entry, name=f"{entry.name} false claim", program=program)


def entries_for(module: str) -> list[Entry]:
    """The plans that a module has a say in: the others would only take time."""
    name = Path(module).stem
    reads = module.startswith("ir/") or module in CHECKER or name in ("statements", "packs")
    adds = name in (
        "memory",
        "sizes",
        "walk",
        "symbolic",
        "profile",
        "terms",
        "ranges",
        "plan_proof",
    )

    def matters(entry: Entry) -> bool:
        if " largest " in entry.name:
            return name in ("largest", "profile", "ranges", "symbolic")
        if entry.name.endswith(" short"):
            return adds
        if entry.name.endswith(" claim"):
            return name in ("claims", "plan_proof")
        if entry.name.startswith("fb02"):
            return reads
        return name != "largest"

    return [entry for entry in corpus() if matters(entry)]


# ---- Faults


def mutants_of(module: str, count: int) -> list[tuple[str, ast.Module]]:
    """`count` changed syntax trees of a module, the same ones every time."""
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    sites = [(i, v) for i, node in enumerate(ast.walk(tree)) for v in range(len(_changes(node)))]
    Random(module).shuffle(sites)
    mutants = []
    for index, variant in sites[:count]:
        changed = copy.deepcopy(tree)
        node = list(ast.walk(changed))[index]
        before = ast.unparse(node).split("\n")[0]
        what, change = _changes(node)[variant]
        change()
        line = getattr(node, "lineno", 0)
        mutants.append(
            (f"{module}:{line} {what}: {before[:60]}", ast.fix_missing_locations(changed))
        )
    return mutants


FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt}
FLIPPED |= {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
FLIPPED |= {ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}

Change = tuple[str, Callable[[], None]]


def _changes(node: Any) -> list[Change]:
    """What can be broken in a node, and how."""

    def put(**fields: Any) -> Callable[[], None]:
        def change() -> None:
            node.__class__ = fields.pop("to", node.__class__)
            for name, value in fields.items():
                setattr(node, name, value)

        return change

    match node:
        case ast.Compare(ops=[op]):
            return [("flip", put(ops=[FLIPPED[type(op)]()]))]
        case ast.BoolOp(op=op, values=[first, *rest]):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            halves = [("drop first", put(values=[*rest, *rest]))]
            return [("and/or", put(op=other)), ("drop", put(values=[first, first])), *halves]
        case ast.UnaryOp(op=ast.Not(), operand=inside):
            return [("not", put(to=ast.BoolOp, op=ast.And(), values=[inside, inside]))]
        case ast.If():
            return [("always", put(test=ast.Constant(True))), ("never", put(test=ast.Constant(0)))]
        case ast.IfExp(body=body, orelse=orelse):
            return [("swap", put(body=orelse, orelse=body))]
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue():
            return [("drop statement", put(to=ast.Pass))]
        case ast.Constant(value=bool(value)):
            return [("not", put(value=not value))]
        case ast.Constant(value=int(value)):
            return [("+1", put(value=value + 1)), ("-1", put(value=value - 1))]
        case ast.BinOp(op=(ast.Add() | ast.Sub()) as op):
            return [("sign", put(op=ast.Sub() if isinstance(op, ast.Add) else ast.Add()))]
        case ast.BinOp(op=ast.BitOr(), left=left):
            return [("drop union", put(right=left))]
        case ast.Tuple(elts=[_, *rest], ctx=ast.Load()) | ast.Set(elts=[_, *rest]):
            return [("drop element", put(elts=rest))] if rest else []
        case ast.Return(value=ast.expr()):
            return [("return nothing", put(value=ast.Tuple([], ast.Load())))]
        case ast.comprehension(ifs=[_, *_]):
            return [("drop condition", put(ifs=[]))]
    return []


SOLVER = {"remat_compile.verifier.answer", "remat_compile.verifier.solvers.z3"}
"""Never changed nor imported again: they know scripts as text, and import nothing of the rest."""
SHORT_PARTS = 12
"""Lines of a part where `smt.py` is changed: else no plan here takes more than one."""


def remember_answers() -> None:
    """Asks z3 once for each script: a fault leaves most of them as they were."""
    asks, answers = Z3.check, dict[tuple[Any, str], Any]()

    def check(self: Z3, text: str, deadline: Deadline) -> Any:
        key = (self.tactics, text)
        if key not in answers:
            answers[key] = asks(self, text, deadline)
        return answers[key]

    Z3.check = check  # type: ignore[method-assign]


def ask_all(entries: Sequence[Entry]) -> None:
    """The honest proofs, so that their answers are known in all children."""
    for entry in entries:
        schedule = entry.program.schedules[entry.schedule]
        if entry.largest is None:
            verify(entry.program, schedule, entry.budgets, text=entry.text)
        else:
            symbol = entry.largest[0]
            prove_largest(entry.program, schedule, entry.budgets, symbol, text=entry.text)


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another syntax tree."""

    def __init__(self, name: str, tree: ast.Module):
        self.name, self.tree = name, tree

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name != self.name:
            return None
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = self.name.removeprefix("remat_compile.").replace(".", "/")
        module.__file__ = str(SOURCE / f"{path}.py")
        exec(compile(self.tree, self.name, "exec"), module.__dict__)


def try_fault(module: str, fault: str, tree: ast.Module, entries: Sequence[Entry]) -> Outcome:
    """Runs the plans with the changed module, in a child process."""
    answer = _in_child(lambda: _run(module, tree, entries))
    if answer is None:
        return Outcome(fault, (), (), finished=False)
    if module == "ir/text/printer.py":
        wrong = [(name, both) for name, text, both in answer if _is_other(name, text, entries)]
        alone = tuple(name for name, _ in wrong)
        return Outcome(fault, alone, tuple(name for name, both in wrong if both))
    return Outcome(fault, tuple(answer[0]), tuple(answer[1]))


def _run(module: str, tree: ast.Module, entries: Sequence[Entry]) -> Any:
    whole = module.startswith("ir/")
    for name in {*sys.modules} - SOLVER:
        if name.startswith("remat_compile.verifier") or (
            whole and name.startswith("remat_compile")
        ):
            del sys.modules[name]
    name = "remat_compile." + module.removesuffix(".py").replace("/", ".")
    sys.meta_path.insert(0, _Changed(name, tree))
    prove = importlib.import_module("remat_compile.verifier.prove")
    if module == "verifier/smt.py":
        vars(importlib.import_module("remat_compile.verifier.smt"))["PART_LINES"] = SHORT_PARTS
    alone: dict[str, Any] = {}
    current = ""

    def listening(agree: Callable[..., Any]) -> Callable[..., Any]:
        def listen(verdict: Any, *rest: Any) -> Any:
            alone.setdefault(current, verdict)
            return agree(verdict, *rest)

        return listen

    for agree in ("agree_on_plan", "agree_on_largest"):
        setattr(prove, agree, listening(getattr(prove, agree)))
    if module == "ir/text/printer.py":
        return list(_printed(prove, entries))
    checks = importlib.import_module("remat_compile.verifier.check")
    wrong: tuple[list[str], list[str]] = ([], [])
    for entry in entries:
        current = entry.name
        if module in CHECKER:
            try:
                if not _accepts(checks, entry):
                    continue  # it says no wrong thing that the solver could join in
            except Exception:
                continue
        try:
            program = entry.program
            if whole:
                parser = importlib.import_module("remat_compile.ir.text.parser")
                proven, program = program.proven, parser.read_syntax(entry.text, "x")
                program = program if not proven else _claiming(program, proven)
            schedule = program.schedules[entry.schedule]
            if entry.largest is not None:
                symbol = entry.largest[0]
                verdict = prove.prove_largest(
                    program, schedule, entry.budgets, symbol, text=entry.text
                )
            else:
                verdict = prove.verify(program, schedule, entry.budgets, text=entry.text)
        except Exception:
            continue
        one = module in CHECKER or entry.wrongly(alone.get(current))
        wrong[0].extend([entry.name] * one)
        wrong[1].extend([entry.name] * entry.wrongly(verdict))
    return wrong


def _claiming(program: Any, proven: Any) -> Any:
    return replace(program, proven=proven)


def _accepts(checks: Any, entry: Entry) -> bool:
    """Whether the checker alone says what is not so. It knows nothing of budgets and claims."""
    if " " in entry.name:
        return False
    name = entry.program.schedules[entry.schedule].name
    opinion = checks.check(entry.text, name)
    if type(opinion).__name__ != "Accepted":
        return False
    peak = (opinion.peak.device, opinion.peak.activation, opinion.peak.host)
    least = opinion.least_time_ns > entry.least[0] or opinion.least_bytes > entry.least[1]
    if entry.peak != peak or opinion.time_ns != entry.time_ns or least or entry.top is None:
        return entry.peak != peak or opinion.time_ns != entry.time_ns or least
    ranges = {symbol.name: (symbol.low, symbol.high) for symbol in entry.program.symbols}
    shorts = [[n - (i == j) for j, n in enumerate(entry.top)] for i in range(3) if entry.top[i]]
    opinions = [checks.check(entry.text, name, None, ranges, checks.Bytes(*n)) for n in shorts]
    return any(type(o).__name__ == "Accepted" and not o.undecided for o in opinions)


def _printed(prove: Any, entries: Sequence[Entry]) -> Iterator[tuple[str, str, bool]]:
    """What the changed printer makes of right plans, and whether that is proven."""
    agreement = importlib.import_module("remat_compile.verifier.agreement")
    for entry in entries:
        schedule = entry.program.schedules[entry.schedule]
        if entry.peak is None or entry.budgets:
            continue
        try:
            text = agreement.written(entry.program, schedule)
            verdict = prove.verify(entry.program, schedule)
        except Exception:
            continue
        yield entry.name, text, type(verdict).__name__ == "ProvenPlan"


def _is_other(name: str, text: str, entries: Sequence[Entry]) -> bool:
    """Whether a text is read as a plan that does something else than the one it was made of."""
    entry = next(e for e in entries if e.name == name and e.peak is not None)
    schedule = entry.program.schedules[entry.schedule]
    if text == format_program(replace(entry.program, schedules=(schedule,), proven=())):
        return False
    try:
        program = parse_program(text, "x")
    except FBError:
        return False  # nobody will run it
    try:
        trace = simulate(program, program.schedules[0])
    except (FBError, IndexError):
        return True
    numbers = (trace.peak_bytes, trace.activation_peak_bytes, trace.host_peak_bytes)
    return numbers != entry.peak or trace.time_ns != entry.time_ns


def _in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a fork of this process, None where it fails or takes too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        # Processor time: a busy machine must not make a fault look like one that hangs.
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        signal.alarm(20 * LIMIT_S)
        sys.setrecursionlimit(2000)
        with open(os.devnull, "w") as nowhere, os.fdopen(writer, "w") as out:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            try:
                json.dump(work(), out)
            except BaseException:
                os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    try:
        return json.loads(text)
    except ValueError:
        return None
