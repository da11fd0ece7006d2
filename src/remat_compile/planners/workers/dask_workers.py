"""Workers of a Dask cluster that runs already. Imported by name only; needs the extra `cluster`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic, sleep
from typing import Any

from ...ir.diagnostics import Diagnostic, FBError
from ...version import __version__
from .pool import LocalWorkers

CONNECT_S, WORKER_S = 8.0, 3.0
"""Limits for all of the greeting, and in it for a worker to be there."""
_SEEN_S, _ASKED_S = 0.2, 2.0
"""Interval between questions who is there, and the limit for an answer: a scheduler that stands
still keeps its connections."""


class DaskWorkers:
    """Jobs go where the scheduler sends them, and to another worker when one dies. Closing leaves
    the cluster as it was found."""

    def __init__(self, address: str, place: str):
        try:
            from distributed import Client
        except ImportError as error:
            hint = 'pip install "remat-compile[cluster]", or leave the workers away'
            message = f"workers at {address} need Dask, which cannot be imported ({error})"
            raise FBError(Diagnostic("FB0410", message, hint=hint), usage=True) from None
        self.address = address
        self._seen, self._seen_at = 0, -inf

        def greet() -> None:
            self._client = Client(f"tcp://{place}", timeout=CONNECT_S / 2, set_as_default=False)
            self._wait()
            self._check()

        # What listens and says nothing holds the library longer than it is told.
        aside = LocalWorkers(1)
        with _quiet("distributed"):
            greeting = aside.submit(greet)
            try:
                greeting.result(CONNECT_S)
            except (OSError, ValueError) as error:  # a TimeoutError is an OSError
                self._close_after(greeting)
                hint = "start it (dask scheduler), mend the address, or leave the workers away"
                message = f"no Dask scheduler answers at {address} ({type(error).__name__})"
                raise FBError(Diagnostic("FB0727", message, hint=hint)) from None
            except BaseException:
                self._close_after(greeting)
                raise
            finally:
                aside.shutdown()
        self._executor = self._client.get_executor(pure=False)

    @property
    def size(self) -> int:
        """Threads of all workers that are there now."""
        return max(1, self._threads())

    @property
    def is_alive(self) -> bool:
        return self._threads() > 0

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(fn, *args)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancels what is left and says goodbye. What a worker has begun ends with its time."""
        with _quiet("distributed"):
            with suppress(OSError, RuntimeError):  # the scheduler may be gone
                self._executor.shutdown(wait=False)
            self._close()

    def _close_after(self, greeting: Future[Any]) -> None:
        """Now, and where it is greeted only after that, then."""
        self._close()
        greeting.add_done_callback(lambda _: self._close())

    def _close(self) -> None:
        with suppress(AttributeError, OSError, RuntimeError):  # it may never have been there
            self._client.close(timeout=1)

    def _threads(self) -> int:
        """Asked for once in a while: many jobs are handed out at once."""
        if monotonic() > self._seen_at + _SEEN_S:
            try:
                there = self._client.nthreads(callback_timeout=_ASKED_S)
                self._seen = sum(there.values())
            except (OSError, RuntimeError):  # the scheduler is gone, or says nothing
                self._seen = 0
            self._seen_at = monotonic()
        return self._seen

    def _wait(self) -> None:
        until = monotonic() + WORKER_S
        while not self._threads():
            if monotonic() > until:
                message = f"the Dask scheduler at {self.address} has no workers"
                hint = "start some (dask worker), or leave the workers away"
                raise FBError(Diagnostic("FB0727", message, hint=hint))
            sleep(0.1)

    def _check(self) -> None:
        """Every worker must have this release: another one may plan otherwise."""
        for worker, release in self._client.run(release_here, on_error="return").items():
            if release == __version__:
                continue
            fails = isinstance(release, BaseException)
            has = f"cannot run it ({release})" if fails else f"has {release}"
            message = f"the Dask worker {worker} {has}; here is remat-compile {__version__}"
            hint = f'install "remat-compile=={__version__}" on every worker'
            raise FBError(Diagnostic("FB0728", message, hint=hint))


def release_here() -> str:
    """The release of this package, where it is called."""
    return __version__


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silences what a library logs about a failure that is told anyway."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
