"""Options of a part in closed form, and the choice among all that are known.

Save all, save nothing, and *drop cheap*: make again whatever takes less time per byte than some
ratio (Zhao 2024, section 4.4, third schedule). At upper levels also one option for each child, by
time plus a price for each byte that is kept. Linear, or nearly so.

Four layers x1 = F0(x0) to x4 = F3(x3), of which the backward reads both sides; saving nothing, each
runs again before the first backward that needs it, and is there until the last.

    >>> made_again(step, {0, 1, 2, 3})
    [0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 6, 7, 8]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...instance import Instance, Order
from ...programs.answer import saved_bytes_of
from ..partition.levels import Level
from .prices import ChildPrices

_RATIOS = (0.25, 0.5, 0.75)
"""Drop-cheap makes again the cheapest values that have this share of all bytes."""


def made_again(instance: Instance, chosen: Collection[int]) -> Order:
    """The step in the order of capture, in which results of `chosen` cNodes do not outlive the
    loss: each runs a second time before the first backward cNode that needs it."""
    inst = instance
    again = {c for c in chosen if inst.makable_C[c] and inst.phase_C[c] == "fwd"}
    maker = {a: c for c in again for a in inst.rewrites_C[c] if not inst.kept_A[a]}
    order: Order = []
    done: set[int] = set()
    for c in inst.capture:
        if c > inst.loss:
            wanted: set[int] = set()
            stack = list(inst.reads_C[c])
            while stack:
                k = maker.get(stack.pop(), -1)
                if k >= 0 and k not in done and k not in wanted:
                    wanted.add(k)
                    stack += inst.rereads_C[k]
            order += sorted(wanted)
            done |= wanted
        order.append(c)
    return order


def quick_orders(instance: Instance) -> Iterator[Order]:
    """Save nothing, and drop cheap for some ratios."""
    inst = instance
    able = [c for c, ok in enumerate(inst.makable_C) if ok and inst.phase_C[c] == "fwd"]
    yield made_again(inst, able)
    bytes_C = {c: sum(inst.size_A[a] for a in inst.rewrites_C[c]) for c in able}
    cheapest = sorted(able, key=lambda c: (inst.retime_C[c] / max(1, bytes_C[c]), c))
    total = sum(bytes_C.values())
    for ratio in _RATIOS:
        chosen: list[int] = []
        taken = 0
        for c in cheapest:
            if taken + bytes_C[c] > ratio * total:
                break
            chosen.append(c)
            taken += bytes_C[c]
        if chosen:
            yield made_again(inst, chosen)


def priced_orders(level: Level, prices: Sequence[ChildPrices], tried: int = 12) -> Iterator[Order]:
    """One option for each child, and no child run again as a whole: for some prices of a byte,
    from none upwards, the option of the least time plus price."""
    byte_ns = {
        (other.time_ns - option.time_ns) / (option.kept_bytes - other.kept_bytes)
        for ways in prices
        for option in ways.options
        for other in ways.options
        if option.kept_bytes > other.kept_bytes and option.time_ns < other.time_ns
    }
    steps = sorted(byte_ns)
    some = (
        [0.0, *(1.001 * steps[i * (len(steps) - 1) // max(1, tried - 1)] for i in range(tried))]
        if steps
        else [0.0]
    )
    seen: set[tuple[int, ...]] = set()
    for price in some:
        chosen = tuple(
            min(
                range(len(ways.options)),
                key=lambda o: (ways.options[o].time_ns + price * ways.options[o].kept_bytes, o),
                default=-1,
            )
            for ways in prices[:-1]
        )
        if chosen not in seen:
            seen.add(chosen)
            yield _order(level, prices, chosen)


def _order(level: Level, prices: Sequence[ChildPrices], chosen: Sequence[int]) -> Order:
    order: Order = []
    for ways, o in zip(prices, chosen, strict=False):
        order += ways.options[o].first.run if o >= 0 else ways.skim_first.run
    order += [level.instance.loss, *level.backward_N[-1]]
    for j in reversed(range(len(chosen))):
        if chosen[j] >= 0:
            order += prices[j].options[chosen[j]].back.run
    return order


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
    """At most `most` of the orders, at least one, from the most saved to the least.

    Of those that no other beats in bytes saved, time and peak, the two ends and then always the one
    farthest from those chosen, in saved bytes and peak (Zhao 2024, section 3.4.4, where it is the
    peak alone).
    """
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
