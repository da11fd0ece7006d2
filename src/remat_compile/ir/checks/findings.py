"""The findings of a check, each with the place of the wrong word."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection

from ..diagnostics import Diagnostic, Note, nearest
from ..span import Span

MAX_SUGGESTIONS = 10
"""Looking for near names takes time in large graphs, so only the first findings get it."""


_WORD = re.compile(
    r'@"(?:[^"\\\n]|\\.)*"|@[A-Za-z_][A-Za-z0-9_./-]*|-[0-9]+(?![A-Za-z0-9_.])'
    r"|%?[A-Za-z0-9_.]+"
)
"""The words that a finding may point at: `@plan`, a negative number, `%x` or another word."""


class Findings:
    """Collects diagnostics. With the text, `word` narrows the span of a statement."""

    def __init__(self, text: str | None, file: str = "<text>"):
        self.file = file
        self._lines = None if text is None else text.removeprefix("\ufeff").split("\n")
        self._suggestions = 0
        self._places: dict[int, dict[str, list[int]]] = {}
        self.diagnostics: list[Diagnostic] = []

    def add(
        self,
        code: str,
        message: str,
        span: Span | None,
        *notes: Note,
        word: str | None = None,
        after: str | None = None,
        hint: str | None = None,
    ) -> None:
        where = self.find(self.find(span, after), word)
        self.diagnostics.append(Diagnostic(code, message, where, notes, hint))

    def unknown(
        self, what: str, name: str, known: Collection[str], span: Span | None, word: str
    ) -> None:
        """FB0201, with the nearest name that there is."""
        near = self.nearest(name, known)
        self.add("FB0201", f"there is no {what} {word}.{near}", span, word=word)

    def nearest(self, name: str, known: Collection[str]) -> str:
        self._suggestions += 1
        return nearest(name, known) if self._suggestions <= MAX_SUGGESTIONS else ""

    def find(self, span: Span | None, word: str | None) -> Span | None:
        """The first place at or after `span`, on its line, where `word` stands; else `span`."""
        if span is None or word is None or self._lines is None:
            return span
        if not 1 <= span.line <= len(self._lines):
            return span
        starts = self._words(span.line).get(word, ())
        at = bisect_left(starts, span.column - 1)
        if at == len(starts):
            return span
        return Span(span.line, starts[at] + 1, starts[at] + 1 + len(word), span.file)

    def _words(self, number: int) -> dict[str, list[int]]:
        """Where each word of a line starts; found once, as a line may hold many mistakes."""
        if number not in self._places:
            words: dict[str, list[int]] = {}
            for match in _WORD.finditer((self._lines or [])[number - 1]):
                words.setdefault(match[0], []).append(match.start())
            self._places[number] = words
        return self._places[number]

    def of_header(self, word: str) -> Span | None:
        """Where a word of the header or the target stands; None without the text."""
        for number, line in enumerate(self._lines or (), 1):
            if re.match(r"\s*graph\b", line):
                break
            if match := re.search(rf'^(?:[^"/]|/(?!/)|"[^"]*")*\b({word})\s', line):
                return Span(number, match.start(1) + 1, match.end(1) + 1, self.file)
        return None
