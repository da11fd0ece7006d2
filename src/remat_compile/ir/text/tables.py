"""The reader's tables, made beforehand: lark takes half a second to make them of the grammar, in
every command and every process that is started.

They lie beside the grammar as lark writes them, and are taken only where they were made of this
very grammar by this version of lark; elsewhere they are made anew, which gives the same.
`tests/ir/test_tables.py` holds them against the grammar, and writes them.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lark import Lark, Token, Transformer


@dataclass(frozen=True)
class Tables:
    """The parsers of `grammar` from each of `start`; the file `name` may hold them."""

    name: str
    grammar: str
    start: tuple[str, ...]

    def reader(self, rules: Transformer[Token, object]) -> Lark:
        """From the file where that is possible."""
        return self.kept(rules) or self.made(rules)

    def made(self, rules: Transformer[Token, object] | None = None) -> Lark:
        """The digest of the grammar."""
        from lark import Lark

        start = list(self.start)
        return Lark(self.grammar, parser="lalr", lexer="contextual", transformer=rules, start=start)

    def kept(self, rules: Transformer[Token, object] | None = None) -> Lark | None:
        """From the file; None where that is of another grammar or another lark, or damaged."""
        from lark import Lark

        build: Any = Lark  # what lark's own stand-alone parsers begin with has no types
        try:
            packed = files(__package__).joinpath(self.name).read_bytes()
            of, text = zlib.decompress(packed).decode().split("\n", 1)
        except (OSError, zlib.error, ValueError):
            return None
        if of != self._of():
            return None
        kept = json.loads(text, object_pairs_hook=_with_numbers)
        reader: Lark = build._load_from_dict(kept["data"], kept["memo"], transformer=rules)
        return reader

    def packed(self) -> bytes:
        """The contents of the file."""
        from lark.grammar import Rule
        from lark.lexer import TerminalDef

        data, memo = self.made().memo_serialize([TerminalDef, Rule])
        text = json.dumps({"data": data, "memo": memo}, separators=(",", ":"))
        return zlib.compress(f"{self._of()}\n{text}".encode(), level=9)

    def _of(self) -> str:
        import lark

        start = " ".join(self.start)
        return f"lark {lark.__version__}, {sha256(self.grammar.encode()).hexdigest()}, {start}"


def _with_numbers(pairs: list[tuple[str, Any]]) -> dict[str | int, Any]:
    """JSON writes the numbers of states and rules as names; nothing else is named by digits."""
    return {int(name) if name.isdigit() else name: value for name, value in pairs}
