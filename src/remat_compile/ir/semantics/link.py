"""When copies run: a link with one queue in each direction, moved from event to event.

A copy needs the latency and then its bytes. While both directions move bytes and the link has a
total (`both`) below the sum of its rates, each gets its share of that. Everything begins and ends
on whole nanoseconds, so integers are exact: `work` is bytes x 10^9 x `scale`, speeds are work per
ns.

1 GB/s out and in, `both 1GB/s`; 100 bytes out at 0, 50 bytes in at 40. Alone until 40; then each at
half the rate: the 50 are in at 140, the last 10 of the 100 are out at 150.

    >>> link = Link(Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, both_bytes_per_s=10**9))
    >>> out, back = link.issue("d2h", 100, 0), link.issue("h2d", 50, 40)
    >>> link.end_of(back), link.end_of(out)
    (140, 150)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..program import Target
from ..schedule import Direction


@dataclass(slots=True)
class Transfer:
    """A copy under way; `start_ns` and `end_ns` are -1 until they are known."""

    latency_ns: int
    work: int
    start_ns: int = -1
    end_ns: int = -1


class Link:
    """An unknown rate counts as no time, as the unknown time of a computation does."""

    def __init__(self, target: Target):
        d2h, h2d = target.d2h_bytes_per_s, target.h2d_bytes_per_s
        self._latency_ns = target.copy_latency_ns
        both, self._scale = target.shared_bytes_per_s, 1
        if both is not None:
            self._scale = (d2h or 0) + (h2d or 0)
        self._alone = {"d2h": (d2h or 0) * self._scale, "h2d": (h2d or 0) * self._scale}
        self._beside = self._alone
        if both is not None:
            self._beside = {"d2h": (d2h or 0) * both, "h2d": (h2d or 0) * both}
        self._queues: dict[Direction, deque[Transfer]] = {"d2h": deque(), "h2d": deque()}
        self._clock_ns = 0

    def issue(self, direction: Direction, size: int, now_ns: int) -> Transfer:
        """A copy of `size` bytes, issued at `now_ns`; these never fall."""
        self._run(now_ns)
        work = size * 10**9 * self._scale if self._alone[direction] else 0
        transfer = Transfer(self._latency_ns, work)
        self._queues[direction].append(transfer)
        self._settle()
        return transfer

    def end_of(self, transfer: Transfer) -> int:
        """When it ends, if nothing is issued until then."""
        while transfer.end_ns < 0:
            self._step(None)
        return transfer.end_ns

    def _run(self, until_ns: int) -> None:
        while self._clock_ns < until_ns:
            self._step(until_ns)

    def _step(self, until_ns: int | None) -> None:
        """To the next moment at which a latency or a copy ends, or until then."""
        heads = [(lane, queue[0]) for lane, queue in self._queues.items() if queue]
        moving = sum(not head.latency_ns for _, head in heads)
        speed = self._beside if moving == 2 else self._alone
        ends = [head.latency_ns or -(-head.work // speed[lane]) for lane, head in heads]
        step = min(ends, default=0)
        if until_ns is not None:
            step = min(step, until_ns - self._clock_ns) if ends else until_ns - self._clock_ns
        self._clock_ns += step
        for lane, head in heads:
            if head.latency_ns:
                head.latency_ns -= step
            else:
                head.work = max(0, head.work - speed[lane] * step)
        self._settle()

    def _settle(self) -> None:
        """Ends what has nothing left, and starts what stands behind it."""
        for queue in self._queues.values():
            while queue:
                head = queue[0]
                if head.start_ns < 0:
                    head.start_ns = self._clock_ns
                if head.latency_ns or head.work:
                    break
                head.end_ns = self._clock_ns
                queue.popleft()
