"""The grammar of generated code: its syntax tree is held against a table before the code runs or is
written.

A generated module is a docstring, known imports, parts that are the same in every module,
and functions that do nothing but call the plan's operators: straight lines of assignments,
`del` and `return`. Whatever else stands there did not come from a plan. The emitters quote
all foreign text (`python/quote.py`); this is the second lock, which knows nothing of the first.

    forward(args, constants=())            a signature of the table
        (x, w) = args                      names that the module itself does not use
        y = _aten_mm_default(x, w)         a call of an operator of the plan
        del x
        return (y, w)
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn

from ...ir.diagnostics import Note, fail
from ...ir.span import Span
from .quote import comment

LITERAL = "LITERAL"
"""A name that stands, in a statement of `Allowed.templates`, for any literal."""

_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)
_DUNDER = re.compile(r"__.*__")
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Allowed:
    """Contents that the generated modules of one backend may have besides a docstring.

    `fixed` are statements as `statements` gives them, `templates` ones with `LITERAL`s.
    `handles` are expressions that a variable of the module may stand for, each an operator;
    `tables` names of constants. `signatures` tell the functions whose bodies are looked at.
    Inside those, `called` are the functions that are called, by dotted name, `values` what is
    read by dotted name, `methods` what is called on a value, `effects` whole statements.
    """

    fixed: frozenset[str]
    templates: tuple[ast.stmt, ...] = ()
    handles: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    signatures: Mapping[str, str] = field(default_factory=dict)
    called: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    effects: frozenset[str] = frozenset()
    context: str | None = None
    """The function that makes what a `with` enters, given one text."""
    segment: re.Pattern[str] | None = None
    """Names of functions inside functions."""
    wrapper: str | None = None
    """The function that wraps a segment, and whose result is called."""


@lru_cache(maxsize=32)
def statements(source: str) -> frozenset[str]:
    """The statements of a text at its top level, to be compared with others."""
    return frozenset(map(ast.dump, ast.parse(source).body))


def check_generated(source: str, allowed: Allowed) -> str:
    """The source itself. FB0941 where it is no Python, FB0940 at the first thing in it that
    is not allowed: nothing may then be run or written."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        message = f"the generated code is no Python: {comment(str(error))}"
        _refuse("FB0941", message, source, Span(line, 1, 2, "<generated code>"))
    _Checker(source, allowed).module(tree)
    return source


def _refuse(code: str, message: str, source: str, span: Span) -> NoReturn:
    lines = source.split("\n")
    text = lines[span.line - 1] if span.line <= len(lines) else ""
    line = Note(f"the line: {comment(text.strip())}")
    hint = "please report this with the plan"
    fail(code, message, span, line, Note("nothing was run or written"), hint=hint)


class _Checker:
    """Goes through one module. `known` are the variables of a function, as far as it has run."""

    def __init__(self, source: str, allowed: Allowed):
        self._source = source
        self._allowed = allowed
        self._handles: set[str] = set()
        self._defined: set[str] = set()
        dotted = (*allowed.called, *allowed.values)
        self._module_names = {
            *(name.split(".")[0] for name in dotted),
            *_BUILTINS,
            *allowed.tables,
            *allowed.signatures,
        }

    # -- the module -------------------------------------------------------------------

    def module(self, tree: ast.Module) -> None:
        if not tree.body or not _is_text(tree.body[0]):
            self._refuse(tree.body[0] if tree.body else None, "no docstring")
        for node in tree.body[1:]:
            if not self._is_given(node):
                self._part(node)

    def _is_given(self, node: ast.stmt) -> bool:
        """Return whether a statement is the same in every module."""
        if isinstance(node, ast.FunctionDef) and node.name in self._allowed.signatures:
            return False
        if any(fits(template, node) for template in self._allowed.templates):
            return True
        return ast.dump(node) in self._allowed.fixed

    def _part(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign([target], value) if self._are_tables(target):
                for name in _names(target):
                    self._once(node, name)
                if not _is_literal(value):
                    self._refuse(value, "a constant that is no literal")
            case ast.Assign([ast.Name(name)], value) if _dotted(value) in self._allowed.handles:
                self._once(node, name)
                if not name.startswith("_") or _DUNDER.fullmatch(name):
                    self._refuse(node, f"an operator named {name}")
                self._handles.add(name)
            case ast.FunctionDef(name) if name in self._allowed.signatures and _is_bare(node):
                self._once(node, name)
                if ast.unparse(node.args) != self._allowed.signatures[name]:
                    self._refuse(node, f"other parameters of {name}")
                self._function(node, set())
            case _:
                self._refuse(node, f"a statement of the kind {type(node).__name__}")

    def _are_tables(self, target: ast.expr) -> bool:
        names = _names(target)
        return bool(names) and self._allowed.tables.issuperset(names)

    def _once(self, node: ast.AST, name: str) -> None:
        if name in self._defined:
            self._refuse(node, f"a second definition of {name}")
        self._defined.add(name)

    # -- statements of a function -----------------------------------------------------

    def _function(self, node: ast.FunctionDef, around: set[str]) -> None:
        """`around` are the variables of the function that this one stands in."""
        known = set(around)
        for parameter in node.args.args:
            self._bind(parameter, parameter.arg, known)
        for statement in node.body:
            self._statement(statement, known)

    def _statement(self, node: ast.stmt, known: set[str]) -> None:
        match node:
            case ast.Expr() if ast.unparse(node) in self._allowed.effects:
                pass
            case ast.Assign([target], value):
                self._value(value, known)
                self._target(target, known)
            case ast.Delete(targets):
                for target in targets:
                    if not isinstance(target, ast.Name) or target.id not in known:
                        self._refuse(target, "a `del` of something that is no variable")
                    known.discard(target.id)
            case ast.Return(value) if value is not None:
                self._value(value, known)
            case ast.With([item], body) if self._is_context(item):
                for statement in body:
                    if not isinstance(statement, ast.Assign):
                        self._refuse(statement, "something other than an assignment under `with`")
                    self._statement(statement, known)
            case ast.FunctionDef(name) if self._is_segment(node) and _is_bare(node):
                self._function(node, known)
                known.add(name)
            case _:
                self._refuse(node, f"a statement of the kind {type(node).__name__}")

    def _is_context(self, item: ast.withitem) -> bool:
        match item:
            case ast.withitem(ast.Call(function, [ast.Constant(str())], []), None):
                return self._allowed.context is not None and (
                    _dotted(function) == self._allowed.context
                )
            case _:
                return False

    def _is_segment(self, node: ast.FunctionDef) -> bool:
        names = [parameter.arg for parameter in node.args.args]
        plain = ", ".join(names) == ast.unparse(node.args)
        segment = self._allowed.segment
        return plain and segment is not None and bool(segment.fullmatch(node.name))

    def _target(self, node: ast.expr, known: set[str]) -> None:
        match node:
            case ast.Name(name):
                self._bind(node, name, known)
            case ast.Tuple(parts):
                for part in parts:
                    self._target(part, known)
            case _:
                self._refuse(node, f"an assignment to a {type(node).__name__}")

    def _bind(self, node: ast.AST, name: str, known: set[str]) -> None:
        if name in self._module_names or name in self._handles or _DUNDER.fullmatch(name):
            self._refuse(node, f"a variable named {name}")
        if not name.isascii():
            self._refuse(node, f"the name {name}, which is not ASCII")
        known.add(name)

    # -- expressions ------------------------------------------------------------------

    def _value(self, node: ast.expr, known: set[str]) -> None:
        match node:
            case ast.Constant() if _is_literal(node):
                pass
            case ast.Name(name):
                if not any(name in names for names in (known, self._handles, self._allowed.values)):
                    self._refuse(node, f"the unknown name {name}")
            case ast.Tuple(parts) | ast.List(parts):
                self._values(parts, known)
            case ast.Dict(keys, values):
                for key in keys:
                    if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                        self._refuse(key or node, "a key that is no text")
                self._values(values, known)
            case ast.UnaryOp(ast.USub(), operand):
                self._value(operand, known)
            case ast.BinOp(left, operation, right) if isinstance(operation, _OPERATIONS):
                self._values((left, right), known)
            case ast.Subscript(value, index):
                self._value(value, known)
                if not _is_index(index):
                    self._refuse(index, "an index that is no literal")
            case ast.Attribute(ast.Name(name), "shape") if name in known:
                pass
            case ast.Attribute() if _dotted(node) in self._allowed.values:
                pass
            case ast.Call():
                self._call(node, known)
            case _:
                self._refuse(node, f"an expression of the kind {type(node).__name__}")

    def _values(self, nodes: Iterable[ast.expr], known: set[str]) -> None:
        for node in nodes:
            self._value(node, known)

    def _call(self, node: ast.Call, known: set[str]) -> None:
        match node.func:
            case ast.Name(name) if name not in known and name in self._handles:
                pass
            case ast.Attribute(ast.Name(name), method) if name in known:
                if method not in self._allowed.methods:
                    self._refuse(node, f"a call of the method {method}")
            case ast.Name() | ast.Attribute() if _dotted(node.func) in self._allowed.called:
                pass
            case ast.Call(function) if _dotted(function) == self._allowed.wrapper is not None:
                self._call(node.func, known)
            case _:
                self._refuse(node, f"a call of {ast.unparse(node.func)}")
        keys = [keyword.arg for keyword in node.keywords]
        for key in keys:
            if key is None or _DUNDER.fullmatch(key) or keys.count(key) > 1:
                self._refuse(node, f"the keyword argument {key or '**'}")
        self._values(node.args, known)
        self._values((keyword.value for keyword in node.keywords), known)

    def _refuse(self, node: ast.AST | None, what: str) -> NoReturn:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        end = getattr(node, "end_col_offset", column) + 1
        span = Span(line, column, max(end, column + 1), "<generated code>")
        message = f"the generated code holds {comment(what)}, which no plan stands for"
        _refuse("FB0940", message, self._source, span)


def _is_text(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(ast.Constant(str())):
            return True
        case _:
            return False


def _is_bare(node: ast.FunctionDef) -> bool:
    """Return whether a function is only its name, parameters and body."""
    return not (node.decorator_list or node.returns or getattr(node, "type_params", None))


def _names(target: ast.expr) -> tuple[str, ...]:
    """The names that a target binds; none where it holds anything else."""
    match target:
        case ast.Name(name):
            return (name,)
        case ast.Tuple(parts) if all(isinstance(part, ast.Name) for part in parts):
            return tuple(part.id for part in parts if isinstance(part, ast.Name))
        case _:
            return ()


def _is_literal(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value):
            return value is None or isinstance(value, bool | int | float | str)
        case ast.UnaryOp(ast.USub(), ast.Constant(value)):
            return isinstance(value, int | float)
        case ast.Tuple(parts) | ast.List(parts):
            return all(map(_is_literal, parts))
        case _:
            return False


def _is_index(node: ast.expr) -> bool:
    match node:
        case ast.Constant(int() | str()):
            return True
        case ast.Slice(None, ast.Constant(int()), None):
            return True
        case _:
            return False


def _dotted(node: ast.expr) -> str | None:
    """`torch.ops.aten` of the expression that reads so."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name):
            base = _dotted(value)
            return None if base is None else f"{base}.{name}"
        case _:
            return None


def fits(template: object, tree: object) -> bool:
    """Return whether two trees are the same, but for literals where the template says `LITERAL`."""
    if isinstance(template, ast.Name) and template.id == LITERAL:
        return isinstance(tree, ast.AST) and _is_literal(tree)
    if isinstance(template, ast.AST):
        return type(template) is type(tree) and all(
            fits(getattr(template, name, None), getattr(tree, name, None))
            for name in template._fields
        )
    if isinstance(template, list):
        return (
            isinstance(tree, list) and len(template) == len(tree) and all(map(fits, template, tree))
        )
    return type(template) is type(tree) and template == tree
