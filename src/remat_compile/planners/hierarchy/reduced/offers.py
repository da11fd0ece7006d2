"""Which options of a class its parent may choose among.

Of all that are known, those that no other beats in bytes saved, time and peak; of these the two
ends and then always the one farthest from those chosen, in saved bytes and peak (Zhao 2024,
section 3.4.4, where it is the peak alone).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...instance import Instance, Order
from ...programs.answer import saved_bytes_of


@dataclass(frozen=True)
class Offer:
    """An order of a class's instance, with bytes saved between forward and backward, time, and
    peak bytes."""

    saved_bytes: int
    time_ns: int
    peak_bytes: int
    order: tuple[int, ...]

    @staticmethod
    def of(instance: Instance, order: Order) -> Offer:
        saved = saved_bytes_of(instance, order)
        return Offer(saved, instance.time_ns(order), instance.peak(order), tuple(order))

    def is_no_worse(self, other: Offer) -> bool:
        return (
            self.saved_bytes <= other.saved_bytes
            and self.time_ns <= other.time_ns
            and self.peak_bytes <= other.peak_bytes
        )


def pareto(offers: Iterable[Offer]) -> list[Offer]:
    """The Pareto-optimal options by bytes saved; the first of equal ones."""
    kept: list[Offer] = []
    for offer in sorted(
        set(offers), key=lambda o: (o.saved_bytes, o.time_ns, o.peak_bytes, o.order)
    ):
        if not any(other.is_no_worse(offer) for other in kept):
            kept.append(offer)
    return kept


def offers_of(instance: Instance, orders: Iterable[Order], most: int) -> list[Offer]:
    """At most `most` of the orders, at least one, from the most saved to the least."""
    known = pareto(Offer.of(instance, order) for order in orders)
    if len(known) <= most:
        return known[::-1]
    high = max(1, max(o.saved_bytes for o in known))
    top = max(1, max(o.peak_bytes for o in known))

    def apart(one: Offer, other: Offer) -> float:
        saved = (one.saved_bytes - other.saved_bytes) / high
        peak = (one.peak_bytes - other.peak_bytes) / top
        return saved * saved + 0.25 * peak * peak

    fastest = min(known, key=lambda o: (o.time_ns, o.saved_bytes))
    chosen = [fastest]
    if known[0] != fastest and most > 1:
        chosen.append(known[0])
    while len(chosen) < most:
        rest = [o for o in known if o not in chosen]
        chosen.append(max(rest, key=lambda o: min(apart(o, c) for c in chosen)))
    return sorted(chosen, key=lambda o: -o.saved_bytes)
