"""The top level of generated JAX code: what it defines, and that each name means one thing."""

from __future__ import annotations

import ast

from ...readback.mismatch import differs, unreadable


def check_fixed(tree: ast.Module, fixed: str, file: str) -> None:
    """FB0945 where a statement of `fixed` does not stand in the module, docstrings aside."""
    functions = definitions(tree, file)
    for wanted in ast.parse(fixed).body:
        if not any(_same(wanted, node) for node in tree.body):
            name = getattr(wanted, "name", ast.unparse(wanted).splitlines()[0])
            differs(functions.get(name, tree), file, "its ends", f"`{name}` is another one")


def definitions(tree: ast.Module, file: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module by name. FB0945 where a name is bound twice."""
    functions: dict[str, ast.FunctionDef] = {}
    bound: set[str] = set()
    for node in tree.body:
        names: list[str] = []
        match node:
            case ast.FunctionDef(name=name):
                functions[name] = node
                names = [name]
            case ast.Assign(targets=targets):
                names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names = [(a.asname or a.name).split(".")[0] for a in aliases]
            case ast.Expr(value=ast.Constant() | ast.Call()) | ast.If():
                pass
            case _:
                unreadable(node, file, ast.unparse(node).splitlines()[0])
        for name in names:
            if name in bound:
                differs(node, file, "no step", f"{name} is bound twice")
            bound.add(name)
    return functions


def _same(wanted: ast.stmt, node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef) and isinstance(wanted, ast.FunctionDef):
        if node.name != wanted.name:
            return False
        return _dump(node) == _dump(wanted)
    return ast.dump(wanted) == ast.dump(node)


def _dump(node: ast.FunctionDef) -> str:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return ast.dump(ast.FunctionDef(node.name, node.args, body, node.decorator_list))
