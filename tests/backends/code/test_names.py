"""Variables of generated code: none is a word of Python, of the module, or another's."""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.emitted.code_plans import FORMS, planned, source
from remat_compile.backends.jax.emit.allowed import MODULE_NAMES
from remat_compile.backends.jax.emit.text import JaxText
from remat_compile.backends.python.names import VariableNames, keywords, symbol_key
from remat_compile.backends.torch.code.expressions import RESERVED, Expressions
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const, Sym
from remat_compile.ir.graph import ANode, Atom, Call, Graph
from remat_compile.ir.program import Program, Symbol
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program

AWKWARD = (
    *("class", "None", "match", "type", "_", "__import__", "__class__", "1", "0x", "a.b", "a_b"),
    *("va_b", "torch", "replay", "args", "constants", "jax", "np", "step", "model", "max", "open"),
    *("forward", "backward", "key", "KEEP", "segment_1", "checkpoint_name", "sizes", "x", "x_host"),
    *("x_host_", "main", "Path", "ﬁ", "fi", "ａ", "a", "x y", "x\ny", "é", ""),
)


def named(*names: str, symbols: tuple[str, ...] = ()) -> Program:
    anodes = tuple(ANode(name, "input", "f32", (), Const(4)) for name in names)
    program, _ = planned()
    sizes = tuple(Symbol(name, 1, 2, 1, 0, 0) for name in symbols)
    return replace(program, graph=Graph("g", anodes, (), ()), symbols=sizes)


def check(names: list[str], program: Program, reserved: frozenset[str]) -> None:
    naming = VariableNames(program, reserved)
    variables = [naming.variable(name) for name in names]
    assert len(set(variables)) == len(names)
    for variable in variables:
        assert variable.isidentifier()
        assert variable.isascii()
        assert unicodedata.normalize("NFKC", variable) == variable
        assert not variable.startswith("_")
        for names_of_python in (keyword.kwlist, keyword.softkwlist, dir(builtins), reserved):
            assert variable not in names_of_python


def test_awkward_names() -> None:
    for reserved in (RESERVED, MODULE_NAMES):
        check(list(AWKWARD), named(*AWKWARD), reserved)


@given(st.lists(st.sampled_from(AWKWARD) | st.text(max_size=3), unique=True))
def test_any_names(names: list[str]) -> None:
    check(names, named(*names), RESERVED)


def test_host_copies_have_names_of_their_own() -> None:
    names = ("x", "x_host", "x_host_", "x_host_host")
    text = JaxText(named(*names, symbols=("x_host__",)), frozenset(("x_host_host_",)))
    variables = [text.host(n) for n in names] + [text.variable(n) for n in names]
    variables += [text.variable(symbol_key("x_host__")), "x_host_host_"]
    assert len(set(variables)) == len(variables)


def test_a_symbol_and_a_tensor_of_the_same_name_are_two() -> None:
    names = VariableNames(named("b", symbols=("b",)), ())
    assert names.integer(Sym("b")) == "b"
    assert names.variable("b") == "vb"


def test_operators_whose_names_look_alike_are_two() -> None:
    x = Expressions(named("x"))
    x.operators = {"_aten_relu_default": "aten.re.lu_default"}
    assert x.operator("aten.relu.default") == "_aten_relu_default_"
    assert x.operators["_aten_relu_default_"] == "aten.relu.default"
    assert x.operator("aten.relu.default") == "_aten_relu_default_"


EVERYWHERE = ("class", "args", "open", "forward")
RENAMED = {
    "torch": (*EVERYWHERE, "torch", "replay"),
    "jax": (*EVERYWHERE, "jax", "key"),
    "annotated": (*EVERYWHERE, "KEEP", "segment_1"),
}


@pytest.mark.parametrize(
    ("form", "name"), [(form, name) for form in FORMS for name in RENAMED[form]]
)
def test_a_tensor_of_that_name_can_be_computed(form: str, name: str) -> None:
    program, schedule = planned()
    text = format_program(program.with_schedule(schedule)).replace("%arg0", f"%{name}")
    renamed = parse_program(text)
    assert re.search(rf"\bv{name}\b", source(form, renamed, renamed.schedules[-1]))


@pytest.mark.parametrize("key", ["from", "class", "None", "a b", "ﬁ"])
def test_keyword_arguments_that_python_cannot_pass(key: str) -> None:
    with pytest.raises(FBError) as caught:
        keywords(Call("aten.uniform.default", (), ((key, 1),)))
    assert caught.value.diagnostics[0].code == "FB0943"
    assert "aten.uniform.default" in caught.value.diagnostics[0].message


def test_a_keyword_argument_given_twice() -> None:
    with pytest.raises(FBError) as caught:
        keywords(Call("aten.sum.default", (), (("dtype", 1), ("dtype", 2))))
    assert caught.value.diagnostics[0].code == "FB0943"


ATOMS = (
    Atom("layout", "ops.load_library"),
    Atom("format", "os.system"),
    Atom("dtype", "f33"),
    Atom("device", "nothing:0"),
)


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_atoms_that_pytorch_does_not_have(atom: Atom) -> None:
    with pytest.raises(FBError) as caught:
        Expressions(named("x")).argument(atom)
    assert caught.value.diagnostics[0].code == "FB0902"


def test_dtypes_that_jax_does_not_have() -> None:
    with pytest.raises(FBError) as caught:
        JaxText(named("x")).argument(Atom("dtype", "f33"))
    assert caught.value.diagnostics[0].code == "FB0902"
