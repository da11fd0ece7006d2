"""What a check has found, each with the place of the very word that is wrong."""

from __future__ import annotations

import re
from collections.abc import Collection

from .diagnostics import Diagnostic, Note, nearest
from .span import Span

__all__ = ["Findings"]

MAX_SUGGESTIONS = 10
"""Looking for near names takes time in large graphs, so only the first findings get it."""


class Findings:
    """Collects diagnostics. With the text, `word` narrows the span of a statement."""

    def __init__(self, text: str | None, file: str = "<text>"):
        self.file = file
        self._lines = None if text is None else text.removeprefix("\ufeff").split("\n")
        self._suggestions = 0
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
        self._suggestions += 1
        near = nearest(name, known) if self._suggestions <= MAX_SUGGESTIONS else ""
        self.add("FB0201", f"there is no {what} {word}.{near}", span, word=word)

    def find(self, span: Span | None, word: str | None) -> Span | None:
        """The first place at or after `span`, on its line, where `word` stands; else `span`."""
        if span is None or word is None or self._lines is None:
            return span
        if not 1 <= span.line <= len(self._lines):
            return span
        pattern = re.compile(rf"(?<![A-Za-z0-9_.%]){re.escape(word)}(?![A-Za-z0-9_.])")
        found = pattern.search(self._lines[span.line - 1], span.column - 1)
        if found is None:
            return span
        return Span(span.line, found.start() + 1, found.end() + 1, span.file)

    def of_header(self, word: str) -> Span | None:
        """Where a word of the header or the target stands; None without the text."""
        for number, line in enumerate(self._lines or (), 1):
            if re.match(r"\s*graph\b", line):
                break
            if found := re.search(rf'^(?:[^"/]|"[^"]*")*\b({word})\s', line):
                return Span(number, found.start(1) + 1, found.end(1) + 1, self.file)
        return None
