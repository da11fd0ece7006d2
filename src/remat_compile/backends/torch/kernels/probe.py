"""Asks early which vector instructions Inductor may use here.

It compiles and loads a library for each kind of them, one after the other, in processes of their
own: five seconds in which the first kernel would wait. A model is captured beside that.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import copy_context
from threading import Thread

__all__ = ["begin_probe", "end_probe"]

_threads: list[Thread] = []


def begin_probe() -> None:
    """Begins to ask, once in a process: Inductor keeps the answer, and its cache on disk the
    libraries."""
    if _threads:
        return
    from torch._inductor import codecache, cpp_builder, cpu_vec_isa

    # What the thread would import otherwise, while the one that began it imports too.
    assert codecache is not None
    assert cpp_builder is not None

    def ask() -> None:
        with suppress(Exception):  # who needs the answer asks again, and is told
            cpu_vec_isa.valid_vec_isa_list()

    thread = Thread(target=copy_context().run, args=(ask,), name="vector instructions", daemon=True)
    _threads.append(thread)
    thread.start()


def end_probe() -> None:
    """Waits for what was begun: before kernels are made, and before anything is timed."""
    for thread in _threads:
        thread.join()
