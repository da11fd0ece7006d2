"""What is no plan is refused before it runs or is written."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from helpers.emitted.code_plans import FORMS, planned, source
from remat_compile.backends.jax.emit.allowed import allowed as of_jax
from remat_compile.backends.jax.emit.allowed import allowed_annotated as of_annotated
from remat_compile.backends.jax.emit.module import operators_of
from remat_compile.backends.jax.lowerings import source_of
from remat_compile.backends.python.allowed import Allowed, check_generated, fits
from remat_compile.backends.torch.code.allowed import allowed as of_torch
from remat_compile.ir.diagnostics import FBError

HELPER = "def replay(state, op, *args, **kwargs):\n    return op(*args, **kwargs)\n"
FUNCTION = {"torch": "forward", "jax": "forward", "annotated": "model"}

INSIDE = {
    "import": "import os",
    "import from": "from os import system",
    "exec": 'exec("1")',
    "open": 'x0 = open("a", "w")',
    "unknown function": "x0 = frobnicate(1)",
    "call of a variable": "x0 = args(1)",
    "call of a call": 'x0 = max(1, 2)("a")',
    "dunder attribute": "x0 = args.__class__",
    "attribute": "x0 = args.data",
    "unknown method": "x0 = args.numpy()",
    "dotted call": 'x0 = torch.load("a")',
    "other operator": "x0 = torch.ops.aten.sin.default(args)",
    "lambda": "x0 = lambda: 1",
    "list comprehension": "x0 = [y for y in args]",
    "generator": "x0 = (y for y in args)",
    "dictionary comprehension": "x0 = {y: y for y in args}",
    "walrus": "x0 = (y := 1)",
    "f-string": 'x0 = f"{args}"',
    "star": "x0 = (*args,)",
    "star argument": "x0 = max(*args)",
    "keyword dictionary": "x0 = max(1, **args)",
    "keyword dunder": "x0 = max(1, __a__=2)",
    "repeated keyword": "x0 = max(1, key=2, key=3)",
    "global": "global torch",
    "pass": "pass",
    "augmented": "x0 = 1; x0 += 1",
    "annotated assignment": "x0: int = 1",
    "two targets": "x0 = x1 = 1",
    "attribute assignment": "args.x = 1",
    "item assignment": "args[0] = 1",
    "assignment to builtin": "max = 1",
    "assignment to module": "jax = 1; torch = 1",
    "assignment to dunder": "__builtins__ = 1",
    "unknown name": "x0 = frobnicate",
    "builtins as value": "x0 = __builtins__",
    "del of attribute": "del args.x",
    "del of what is not": "del frobnicate",
    "use after del": "x0 = 1; del x0; x1 = x0",
    "if": "if True: x0 = 1",
    "for": "for x0 in args: x1 = 1",
    "while": "while True: x0 = 1",
    "try": "try:\n        x0 = 1\n    except Exception: x0 = 2",
    "with": 'with open("a"): x0 = 1',
    "with as": 'with jax.named_scope("F") as s: x0 = 1',
    "call under with": 'with jax.named_scope("F"): exec("1")',
    "scope of an expression": 'with jax.named_scope(exec("1")): x0 = 1',
    "function": "def f(): x0 = 1",
    "default": "def segment_1(x0=exec('1')): return x0",
    "annotation": "def segment_1(x0: exec('1')): return x0",
    "decorator": "@exec\n    def segment_1(x0): return x0",
    "class": "class X: x0 = 1",
    "assert": "assert args",
    "raise": "raise ValueError",
    "yield": "x0 = yield",
    "await": "x0 = [await y]",
    "return alone": "return",
    "comparison": "x0 = 1 < 2",
    "condition": "x0 = 1 if args else 2",
    "and": "x0 = args and 1",
    "index": "x0 = args[args]",
    "bytes": "x0 = b'1'",
    "ellipsis": "x0 = ...",
    "complex": "x0 = 1j",
    "key of a dictionary": "x0 = {1: 2}",
    "set": "x0 = {1}",
    "other letters": "é = 1",
    "letters that Python takes for others": "ｍax = 1",
    "string statement": '"text"',
}
OUTSIDE = {
    "import": "import os",
    "star import": "from os import *",
    "renamed import": "import torch as jax",
    "exec": 'exec("1")',
    "call": 'x = open("a", "w")',
    "function": "def other():\n    return 1",
    "class": "class X:\n    pass",
    "handle outside the graph": "_a = torch.ops.aten.from_file.default._op",
    "handle of a dunder": "_a = torch.ops.__class__.__init__.x._op",
    "handle over a name": "torch = torch.ops.aten.relu.default._op",
    "rebinding": "forward = 1",
    "table": "KINDS = open",
    "type": "type X = int",
    "string": '"""again"""',
}


def rules(form: str) -> Allowed:
    program, schedule = planned()
    if form == "torch":
        return of_torch(program, schedule, HELPER)
    operators = operators_of(program)
    return {"jax": of_jax, "annotated": of_annotated}[form](source_of(operators), program.graph)


@cache
def generated(form: str) -> str:
    text = source(form, *planned())
    if form == "torch":
        head, rest = re.split(r"(?=\ndef replay)", text)
        text = head + "\n" + HELPER + rest[rest.index("\n\ndef forward") :]
    return check_generated(text, rules(form))


def refused(text: str, form: str) -> FBError:
    with pytest.raises(FBError) as caught:
        check_generated(text, rules(form))
    assert caught.value.diagnostics[0].code in ("FB0940", "FB0941")
    return caught.value


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", INSIDE)
def test_injected_into_a_function(kind: str, form: str) -> None:
    text = generated(form)
    head = re.search(rf"^def {FUNCTION[form]}\(.*\n", text, re.M)
    assert head is not None
    error = refused(f"{text[: head.end()]}    {INSIDE[kind]}\n{text[head.end() :]}", form)
    (diagnostic,) = error.diagnostics
    assert diagnostic.span is not None
    first = text[: head.end()].count("\n") + 1
    assert first <= diagnostic.span.line <= first + INSIDE[kind].count("\n")
    assert diagnostic.notes[1].message == "nothing was run or written"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", OUTSIDE)
def test_injected_into_the_module(kind: str, form: str) -> None:
    text = generated(form)
    refused(f"{text}\n{OUTSIDE[kind]}\n", form)


CHANGED = {
    "torch": [
        ("import torch\n", "import os as torch\n"),
        ("def forward(args, constants=())", "def forward(args, constants=exec('1'))"),
        ("def forward(", "@exec\ndef forward("),
        ("def backward(", "def forward("),
        ("return op(*args, **kwargs)", "return exec(*args, **kwargs)"),
        ("_aten_addmm_default =", "_aten_relu_default ="),
        ("torch.ops.aten.addmm.default._op", "torch.ops.aten.addmm.default._schema"),
        ("args.clear()", "args.append(1)"),
        ("torch.get_rng_state()", "torch.seed()"),
    ],
    "jax": [
        ("import sys\n", "import os\n"),
        ("return 0\n", "return exec('1')\n"),
        ("key=None):", "key=exec('1')):"),
        ("def aten_addmm_default(", "def aten_relu_default(a, "),
        ("jnp.ones_like(output)", "jnp.load(output)"),
        ('"param"', '"other"'),
        ("= aten_t_default(", "= jnp.load("),
    ],
    "annotated": [
        ("places, without = (), ()", "places, without = (), exec('1')"),
        ("policy=KEEP", "policy=exec"),
        ("= jax.checkpoint(", "= jax.jit("),
        ("offload_src=", "offload_dst="),
        ("KEPT = [", "KEPT = [exec('1'), "),
    ],
}


@pytest.mark.parametrize(
    ("form", "old", "new"), [(form, *pair) for form, pairs in CHANGED.items() for pair in pairs]
)
def test_what_is_the_same_in_every_module_stays_the_same(form: str, old: str, new: str) -> None:
    text = generated(form)
    assert old in text
    refused(text.replace(old, new, 1), form)


@pytest.mark.parametrize("text", ["", "x = 1", "def f(:", "x = (", "\0", "(" * 500 + ")" * 500])
def test_what_is_no_module_of_ours(text: str) -> None:
    refused(text, "torch")


def test_the_place_and_the_line_are_shown() -> None:
    text = generated("torch").replace("args.clear()", "args.extend(1)", 1)
    line = text[: text.index("args.extend")].count("\n") + 1
    (diagnostic,) = refused(text, "torch").diagnostics
    assert str(diagnostic.span) == f"<generated code>:{line}:5"
    assert diagnostic.notes[0].message == "the line: args.extend(1)"
    assert diagnostic.hint is not None


def test_a_template_admits_literals_where_it_says_so() -> None:
    template, literal, call = ast.parse("x = LITERAL; x = (1, 'a'); x = (1, f())").body
    assert fits(template, literal)
    assert not fits(template, call)
