"""Ends `auto` at a line of its progress instead of at a time."""

from __future__ import annotations

from remat_compile.planners.contract import Progress


def stop_at(begins: str, said: list[str]) -> Progress:
    """A progress function that collects lines in `said`, and is Ctrl-C at the first that begins
    so: `auto` answers with the best plan until then."""

    def progress(line: str) -> None:
        said.append(line)
        if line.startswith(begins):
            raise KeyboardInterrupt

    return progress
