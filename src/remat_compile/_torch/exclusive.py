"""One thread at a time traces, and no other one sees what it exchanges meanwhile.

While a model is traced, tensors without numbers stand on its modules in the place of its
parameters, attributes change and are put back, and methods of PyTorch are exchanged: state of the
process. Planned steps are traced on any thread (the first gradient in a new layout is met inside of
a backward). So who traces holds one lock, and for as long as something is exchanged a second one.

A planned step takes no lock where nothing is exchanged while it looks at its modules: `undisturbed`
compares a count before and behind that. What it runs then is in its own hands.

No deadlock: the second lock is taken inside of the first or alone, never the other way round. Who
holds them waits for no other thread: AOTAutograd traces a backward on the thread that asks for it,
and where a backward with numbers runs inside (the comparison with eager), no planned step does
(`originals_run`), whose nodes could ask for the first lock on a thread of autograd's.

Example: thread 1 traces model M inside of a backward, thread 2 calls its planned step. That one
sees an odd count, waits until M has its parameters again, looks at them, and runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

__all__ = ["do_originals_run", "exchanging", "originals_run", "settled", "tracing", "undisturbed"]

Seen = TypeVar("Seen")

_TRACING = threading.RLock()
_EXCHANGING = threading.RLock()


class _Exchanges:
    """`count` goes up where the outermost one begins and where it ends: odd while there is one."""

    count = 0
    depth = 0


class _Originals(threading.local):
    """Whether planned modules run their own forward on this thread."""

    run = False


_exchanges = _Exchanges()
_originals = _Originals()


@contextmanager
def tracing() -> Iterator[None]:
    """Inside, no other thread traces. May be nested."""
    with _TRACING:
        yield


@contextmanager
def exchanging() -> Iterator[None]:
    """Inside, no planned step of another thread looks at modules, and nobody else traces."""
    with _TRACING, _EXCHANGING:
        if not _exchanges.depth:
            _exchanges.count += 1
        _exchanges.depth += 1
        try:
            yield
        finally:
            _exchanges.depth -= 1
            if not _exchanges.depth:
                _exchanges.count += 1


def undisturbed(look: Callable[..., Seen], *args: Any) -> Seen:
    """What `look` gives where no other thread exchanges anything meanwhile; it may run twice."""
    count = _exchanges.count
    if not count & 1:
        try:
            seen = look(*args)
        except Exception:  # of what another thread had exchanged, perhaps
            if _exchanges.count == count:
                raise
        else:
            if _exchanges.count == count:
                return seen
    with _EXCHANGING:
        return look(*args)


def settled() -> AbstractContextManager[Any]:
    """Inside, no other thread exchanges anything."""
    return _EXCHANGING


@contextmanager
def originals_run() -> Iterator[None]:
    """Inside `exchanging`, planned modules that are part of a model run as they are in eager."""
    before, _originals.run = _originals.run, True
    try:
        yield
    finally:
        _originals.run = before


def do_originals_run() -> bool:
    """Whether this thread is inside of `originals_run`."""
    return bool(_exchanges.count & 1) and _originals.run


def _forked() -> None:
    """In a process that another thread's work was copied into half done, nobody goes on with it."""
    if _TRACING._is_owned() or _EXCHANGING._is_owned():  # type: ignore[attr-defined]
        return
    _TRACING._at_fork_reinit()  # type: ignore[attr-defined]
    _EXCHANGING._at_fork_reinit()  # type: ignore[attr-defined]
    _exchanges.count += _exchanges.count & 1
    _exchanges.depth = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
