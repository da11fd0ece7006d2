"""A kernel as a function of its arguments one by one, with nothing on the way.

Inductor's `call` takes a list, unpacks and empties it, asserts how each argument lies, and deletes
names. What is left of it here is what is checked, allocated, called and returned:

    def kernel(arg0_1, arg1_1):
        if arg0_1.stride() != (32, 1) or arg0_1.shape != (8, 32):
            return otherwise(arg0_1, arg1_1)
        buf0 = empty_strided_cpu((8, 32), (32, 1), torch.float32)
        cpp_fused_0(arg0_1, buf0)
        return (buf0,)

Right after a product of matrices each line costs microseconds. What the code does not read (the
bias, in the backward of a norm) is not looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .generated import CalledText, called_text
from .inductor import Function

__all__ = ["direct"]

_ASSERTS = "assert_size_stride"
_OTHERWISE = "_otherwise"


def direct(compiled: object, otherwise: Function) -> Function | None:
    """What `compiled` gives; for an argument with other sizes or strides than its text asserts,
    what `otherwise` gives. None where the text is not at hand, or is another than is known here.
    """
    called = called_text(compiled)
    if called is None:
        return None
    match called.function.body:
        case [
            ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Name(id="args")),
            ast.Expr(value=ast.Call(func=ast.Attribute(attr="clear"))),
            *body,
        ]:
            parameters = [part.id for part in parts if isinstance(part, ast.Name)]
        case _:
            return None
    if len({*parameters}) != len(parts):
        return None
    asserted = {name: text for line in body for name, text in _asserted(line, parameters)}
    rest = [line for line in body if not _is_left_out(line, parameters)]
    names = [node for line in rest for node in ast.walk(line) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    taken = {"args", _OTHERWISE} & (read | bound | {*parameters})
    if taken or not bound.isdisjoint(parameters) or not {*parameters} & read <= asserted.keys():
        return None
    return _compiled(
        called, parameters, [asserted[p] for p in parameters if p in read], rest, otherwise
    )


def _compiled(
    called: CalledText,
    parameters: Sequence[str],
    checks: Sequence[str],
    rest: Sequence[ast.stmt],
    otherwise: Function,
) -> Function:
    given = ", ".join(parameters)
    text = [f"def kernel({given}):"]
    if checks:
        text += [f"    if {' or '.join(checks)}:", f"        return {_OTHERWISE}({given})"]
    text += [f"    {line}" for part in rest for line in ast.unparse(part).splitlines()]
    space = {**called.names, _OTHERWISE: otherwise}
    exec(compile("\n".join(text), "<kernel>", "exec"), space)  # lines of `called_text`
    return space["kernel"]  # type: ignore[no-any-return]


def _asserted(line: ast.stmt, parameters: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The parameter whose layout a line asserts, and what is true of one that lies otherwise."""
    match line:
        case ast.Expr(
            value=ast.Call(func=ast.Name(id=name), args=[ast.Name(id=of), shape, stride, *_])
        ) if name == _ASSERTS and of in parameters:
            if _is_fixed(shape) and _is_fixed(stride):
                sizes, steps = ast.unparse(shape), ast.unparse(stride)
                yield of, f"{of}.stride() != {steps} or {of}.shape != {sizes}"


def _is_left_out(line: ast.stmt, parameters: Sequence[str]) -> bool:
    """Whether a line asserts or deletes parameters alone, which the caller holds anyway."""
    match line:
        case ast.Delete(targets=targets):
            return all(isinstance(t, ast.Name) and t.id in parameters for t in targets)
        case _:
            return any(True for _ in _asserted(line, parameters))


def _is_fixed(node: ast.expr) -> bool:
    """Whether it is a tuple of integers."""
    match node:
        case ast.Tuple(elts=parts):
            return all(isinstance(p, ast.Constant) and type(p.value) is int for p in parts)
        case _:
            return False
