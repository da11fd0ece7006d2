"""A link to the host as users write it: `25GB/s`, or
`d2h=25GB/s,h2d=11GB/s,both=30GB/s,latency=10us,issue=5us`."""

from __future__ import annotations

from dataclasses import dataclass

from ...costs.device import parse_rate
from ...ir.checks.binding import MOST
from ...ir.diagnostics import Diagnostic, FBError, nearest
from ...ir.program import Target
from ...ir.text.syntax import duration_ns

_FORM = (
    "write 25GB/s for both ways, or d2h=25GB/s,h2d=11GB/s and, if known, "
    "both=30GB/s,latency=10us,issue=5us"
)
_TIMES = ("latency", "issue")
_WORDS = ("d2h", "h2d", "both", *_TIMES)


@dataclass(frozen=True)
class LinkText:
    """Rates in bytes per second; `both` is what the two ways move together, `issue` the time of
    the compute stream that each copy takes."""

    text: str
    d2h_bytes_per_s: int
    h2d_bytes_per_s: int
    both_bytes_per_s: int | None = None
    latency_ns: int = 0
    issue_ns: int = 0

    def on(self, target: Target) -> Target:
        """The target with this link in place of its own."""
        rates = (self.d2h_bytes_per_s, self.h2d_bytes_per_s, self.both_bytes_per_s)
        return target.with_link(*rates, self.latency_ns, self.issue_ns)


def parse_link(text: str) -> LinkText:
    """FB0472 for what cannot be read, FB0477 for a `both` that the ways alone exclude."""
    if not isinstance(text, str):
        raise _unreadable(repr(text), "a link is a text")
    if "=" not in text:
        rate = _rate(text, text)
        return LinkText(text, rate, rate)
    values: dict[str, int] = {}
    for part in text.split(","):
        word, _, value = (piece.strip() for piece in part.partition("="))
        if word not in _WORDS:
            raise _unreadable(text, f'there is no "{word}".{nearest(word, _WORDS)}')
        if word in values:
            raise _unreadable(text, f"{word} is given twice")
        values[word] = _time(text, value) if word in _TIMES else _rate(text, value)
    missing = [word for word in ("d2h", "h2d") if word not in values]
    if missing:
        raise _unreadable(text, f"{' and '.join(missing)} is missing")
    both = values.get("both")
    rates = (values["d2h"], values["h2d"])
    if both is not None and not max(rates) <= both <= sum(rates):
        message = (
            f'link "{text}": both ways together move {both} B/s, alone {rates[0]} and {rates[1]}'
        )
        hint = "leave `both` out where the two ways do not slow each other down"
        raise FBError(Diagnostic("FB0477", message, hint=hint), usage=True)
    times = (values.get(word, 0) for word in _TIMES)
    return LinkText(text, values["d2h"], values["h2d"], both, *times)


def _rate(text: str, value: str) -> int:
    if (rate := parse_rate(value.strip())) is None:
        raise _unreadable(text, f'"{value}" is no rate')
    return rate


def _time(text: str, value: str) -> int:
    try:
        time_ns = duration_ns(value)
    except (ValueError, KeyError, TypeError):
        raise _unreadable(text, f'"{value}" is no time, as 10us is') from None
    if not 0 <= time_ns <= MOST["copy_latency"]:
        raise _unreadable(text, f'"{value}" is no time from 0 to {MOST["copy_latency"]}ns')
    return time_ns


def _unreadable(text: str, why: str) -> FBError:
    message = f'cannot read the link "{text}": {why}'
    return FBError(Diagnostic("FB0472", message, hint=_FORM), usage=True)
