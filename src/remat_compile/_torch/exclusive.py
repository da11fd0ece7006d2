"""One thread at a time traces, and no other one sees what it exchanges meanwhile.

While a model is traced, tensors without numbers stand on its modules in the place of its
parameters, attributes change and are put back, and methods of PyTorch are exchanged: state of the
process. Planned steps are traced on any thread (the first gradient in a new layout is met inside of
a backward). So who traces holds one lock, and for as long as something is exchanged a second one.

A planned step takes no lock where nothing is exchanged while it looks at its modules: `undisturbed`
compares a count before and behind that. What it runs then is in its own hands.

No deadlock: the second lock is taken inside of the first or alone, never the other way round. Who
holds the first waits for no other thread. A backward runs on the thread that asks for it inside
(the comparison with eager has one with numbers): autograd's own thread for a device may be in the
backward of another thread's step, which waits for that lock. And for as long as a thread exchanges,
planned modules that it calls run their own forward, not their step.

Example: thread 1 traces model M inside of a backward, thread 2 calls its planned step. That one
sees an odd count, waits until M has its parameters again, looks at them, and runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch

__all__ = ["capturing", "do_originals_run", "exchanging", "settled", "tracing", "undisturbed"]

Seen = TypeVar("Seen")

_TRACING = threading.RLock()
_EXCHANGING = threading.RLock()


class _Exchanges:
    """`count` goes up where the outermost one begins and where it ends: odd while there is one, by
    the thread `owner`."""

    count = 0
    depth = 0
    owner = 0


_exchanges = _Exchanges()


@contextmanager
def tracing() -> Iterator[None]:
    """Inside, no other thread traces, and a backward runs on this one. May be nested."""
    with _TRACING, torch.autograd.set_multithreading_enabled(False):
        yield


@contextmanager
def exchanging() -> Iterator[None]:
    """Inside, no planned step of another thread looks at modules, and nobody else traces."""
    with tracing(), _EXCHANGING:
        if not _exchanges.depth:
            _exchanges.owner = threading.get_ident()
            _exchanges.count += 1
        _exchanges.depth += 1
        try:
            yield
        finally:
            _exchanges.depth -= 1
            if not _exchanges.depth:
                _exchanges.count += 1


@contextmanager
def capturing() -> Iterator[None]:
    """`exchanging`, behind TorchDynamo's own lock: who compiles under that takes ours inside."""
    from torch._dynamo.convert_frame import compile_lock  # not loaded with PyTorch

    with compile_lock, exchanging():
        yield


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


def do_originals_run() -> bool:
    """Whether this thread exchanges something: planned modules run as they are in eager then."""
    return bool(_exchanges.count & 1) and _exchanges.owner == threading.get_ident()


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
