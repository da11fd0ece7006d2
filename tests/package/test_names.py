"""A name says what it holds: words that say nothing about a value are not names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("src", "tests", "benchmarks", "examples")

INSTEAD = {
    "found": "what was looked for: `diagnostics`, `match`, `orders`, `candidate`",
    "told": "what was said: `warnings`, `lines`, `message`; of a flag, `is_reported`",
    "sifted": "what is left: `feasible`, `without_duplicates`",
    "dull": "what is missing: `rounds_without_gain`, `is_trivial`",
    "strange": "what is wrong with it: `malformed`, `unsupported`",
    "landing": "where to: `destination`, `offset_bytes`, `backward`",
    "thing": "what it is: `anode`, `step`, `argument`",
    "stuff": "what they are: `operands`, `residuals`",
    "tmp": "what it is for: `partial_sum`, `scratch_folder`",
    "temp": "what it is for: `previous`, `scratch`",
    "obj": "its kind: `module`, `tensor`, `plan`",
    "val": "whose it is: `bound`, `stride`, `default`",
    "res": "of what: `verdict`, `schedule`, `gradients`",
    "ret": "of what: `verdict`, `schedule`, `gradients`",
    "misc": "what belongs together: `limits`, `flags`",
    "foo": "anything else",
}
"""Words that say nothing, and what to write instead: what the value is, as the field calls it."""


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module gives, with its line: of variables, attributes, parameters,
    functions, classes, and what patterns, handlers and imports bind."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case (
                ast.arg(arg=str(name))
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
                | ast.alias(asname=str(name))
            ):
                yield node.lineno, name


def vague_names(text: str, file: str) -> list[str]:
    """`file:line:name` of each that is one of the words, underscores, digits and case aside."""
    stem = Path(file).stem
    named = [(1, stem), *bound_names(ast.parse(text))]
    return [
        f"{file}:{line}:{name}: write {INSTEAD[word]}"
        for line, name in sorted(named)
        if (word := name.strip("_0123456789").lower()) in INSTEAD
        or (word := word.removesuffix("s")) in INSTEAD
    ]


def test_names_say_what_they_hold() -> None:
    vague = [
        line
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in vague_names(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]
    assert not vague, "\n".join(vague)


BINDINGS = {
    "a variable": "found = 1",
    "one with a type": "found: int",
    "one of several": "first, (found, *rest) = 1, (2, 3)",
    "a starred one": "first, *found = 1, 2",
    "one that grows": "found += 1",
    "a walrus": "if found := 1: pass",
    "a loop": "for found in (): pass",
    "a comprehension": "[found for found in ()]",
    "a comprehension's second loop": "{a: found for a in () for found in a}",
    "a context": "with open('') as found: pass",
    "an exception": "try: pass\nexcept ValueError as found: pass",
    "an attribute": "self.found = 1",
    "an attribute in a loop": "for self.found in (): pass",
    "a field": "class A:\n    found: int = 0",
    "a parameter": "def f(found): pass",
    "one by position": "def f(found, /): pass",
    "one by keyword": "def f(*, found=1): pass",
    "further ones": "def f(*found): pass",
    "further ones by keyword": "def f(**found): pass",
    "that of a lambda": "lambda found: 1",
    "a function": "def found(): pass",
    "an asynchronous one": "async def found(): pass",
    "a class": "class Found: pass",
    "a capture": "match 1:\n    case found: pass",
    "a capture under a pattern": "match 1:\n    case int() as found: pass",
    "a capture of an attribute": "match 1:\n    case A(b=found): pass",
    "a capture of several": "match 1:\n    case [_, *found]: pass",
    "a capture of the other keys": "match 1:\n    case {'a': 1, **found}: pass",
    "an import": "import re as found",
    "an import from": "from re import match as found",
    "a private one": "_found = 1",
    "a private one of a class": "self.__found = 1",
    "one beside a keyword": "found_ = 1",
    "a numbered one": "found2 = 1",
    "a constant": "FOUND = 1",
}


@pytest.mark.parametrize("form", BINDINGS)
def test_every_way_to_give_a_name_is_seen(form: str) -> None:
    text = f"import re\n\n{BINDINGS[form]}\n"
    (line,) = vague_names(text, "a/b.py")
    file, number, name, _ = line.split(":", 3)
    assert file == "a/b.py"
    assert "found" in text.split("\n")[int(number) - 1].lower()
    assert name.strip("_2").lower() == "found"


@pytest.mark.parametrize("word", INSTEAD)
def test_every_word_is_seen(word: str) -> None:
    assert vague_names(f"{word} = 1", "a.py")[0].startswith(f"a.py:1:{word}: write ")
    assert vague_names(f"def {word}s(): pass", "a.py")[0].startswith(f"a.py:1:{word}s: write ")
    assert vague_names("", f"a/{word}.py")[0].startswith(f"a/{word}.py:1:{word}: write ")


def test_what_is_only_used_or_said_is_another_ones() -> None:
    """The name of what others made, a word of a sentence, and names that have more to say."""
    text = '''
"""found"""
import re.found
from re import told
f(found=1)
print(found.told, "found", {"found": 1})
founder = not_found = template = result = residual = 1  # found
'''
    assert vague_names(text, "a.py") == []
