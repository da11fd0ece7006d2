"""The lock of a trace: one thread at a time, and no other sees the exchanged parameters.

While a model is traced, tensors without numbers stand on its modules in the place of its
parameters, and attributes change and are put back. Who traces holds one lock until its plan is
made, as TorchDynamo holds its own, and inside of it a second one while something is exchanged. A
planned step takes the second one only where a count says that something is exchanged.

No deadlock: who holds the first waits for no other thread, since a backward runs on the thread that
asks for it inside, and planned modules that it calls run their own forward, not their step.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch

Seen = TypeVar("Seen")

_TRACING = threading.RLock()
_EXCHANGING = threading.RLock()


class _Exchanges:
    """`count` rises where the outermost exchange of thread `owner` begins and ends: odd inside."""

    count = depth = owner = 0


@contextmanager
def tracing() -> Iterator[None]:
    """Inside, no other thread traces, and a backward runs on this one. May be nested."""
    with _TRACING, torch.autograd.set_multithreading_enabled(False):
        yield


@contextmanager
def exchanging() -> Iterator[None]:
    """As `tracing`; besides, no planned step of another thread looks at modules."""
    with tracing(), _EXCHANGING:
        _Exchanges.owner = threading.get_ident()
        _Exchanges.count += not _Exchanges.depth
        _Exchanges.depth += 1
        try:
            yield
        finally:
            _Exchanges.depth -= 1
            _Exchanges.count += not _Exchanges.depth


@contextmanager
def capturing() -> Iterator[None]:
    """`exchanging`, behind TorchDynamo's own lock: who compiles under that takes ours inside."""
    from torch._dynamo.convert_frame import compile_lock  # not loaded with PyTorch

    with compile_lock, exchanging():
        yield


def undisturbed(look: Callable[..., Seen], *args: Any) -> Seen:
    """The result of `look` where no other thread exchanges anything meanwhile; may run it twice."""
    count = _Exchanges.count
    if not count & 1:
        try:
            seen = look(*args)
        except Exception:  # perhaps of what another thread had exchanged
            if _Exchanges.count == count:
                raise
        else:
            if _Exchanges.count == count:
                return seen
    with _EXCHANGING:
        return look(*args)


def settled() -> AbstractContextManager[Any]:
    """Inside, no other thread exchanges anything."""
    return _EXCHANGING


def do_originals_run() -> bool:
    """Return whether this thread exchanges something: planned modules run as they are in eager
    then."""
    return bool(_Exchanges.count & 1) and _Exchanges.owner == threading.get_ident()


def _forked() -> None:
    """A child process does not wait for a thread of its parent."""
    if not (_TRACING._is_owned() or _EXCHANGING._is_owned()):  # type: ignore[attr-defined]
        for lock in (_TRACING, _EXCHANGING):
            lock._at_fork_reinit()  # type: ignore[attr-defined]
        _Exchanges.count += _Exchanges.count & 1
        _Exchanges.depth = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextmanager
def unlogged(level: int = logging.ERROR) -> Iterator[None]:
    """Silence the log up to this level inside, as around a trial that may fail."""
    before = logging.root.manager.disable
    logging.disable(max(before, level))
    try:
        yield
    finally:
        logging.disable(before)
