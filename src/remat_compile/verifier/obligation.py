"""The obligations of a plan, and their spelling in a file's proof."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ..ir.program import Proven


class Obligation(StrEnum):
    """The obligations of `spec/verification.md`; the second is asked in up to three parts."""

    VALIDITY = "validity"
    MEMORY = "memory"
    MEMORY_RANGES = "memory-ranges"
    SIZES = "sizes"
    VALUES = "values"
    RACES = "races"
    CLAIMS = "claims"

    @property
    def number(self) -> int:
        """As `spec/verification.md` counts them."""
        return _NUMBERS[self]

    @property
    def meaning(self) -> str:
        """The meaning of `unsat`."""
        return _MEANINGS[self]


_NUMBERS = {
    Obligation.VALIDITY: 1,
    Obligation.MEMORY: 2,
    Obligation.MEMORY_RANGES: 2,
    Obligation.SIZES: 2,
    Obligation.VALUES: 3,
    Obligation.RACES: 4,
    Obligation.CLAIMS: 5,
}
_MEANINGS = {
    Obligation.VALIDITY: "every read is alive, complete and of the right version",
    Obligation.MEMORY: "no step takes more bytes than the bound asked about",
    Obligation.MEMORY_RANGES: (
        "no step takes more for any value of the symbols in the box asked about"
    ),
    Obligation.SIZES: "the sizes asked about are sizes in the ranges of the symbols",
    Obligation.VALUES: "every read finds the value of the unplanned step",
    Obligation.RACES: "no timing of the copies changes what is read",
    Obligation.CLAIMS: "the steps take the time that is claimed",
}

FULL_PROOF = (
    Obligation.VALIDITY,
    Obligation.MEMORY,
    Obligation.VALUES,
    Obligation.RACES,
    Obligation.CLAIMS,
)
"""The obligations of a full proof; that of memory says for which sizes."""

_AT_SAMPLE = f"{Obligation.MEMORY} at sample"


def written_obligations(
    ranges: Sequence[tuple[str, int, int]], *, any_free: bool, is_lossy: bool = False
) -> tuple[str, ...]:
    """The entries of a full proof. Bytes hold for all `ranges` (name, low, high); without any, at
    the sample, which is said where `any_free` symbol may have another value. Values are those of
    the unplanned step up to lossy codecs where it `is_lossy`."""
    memory = _AT_SAMPLE if any_free else str(Obligation.MEMORY)
    if ranges:
        boxes = ", ".join(f"{name} in [{low}, {high}]" for name, low, high in ranges)
        memory = f"{Obligation.MEMORY} for {boxes}"
    values = f"{Obligation.VALUES} up to lossy codecs" if is_lossy else str(Obligation.VALUES)
    said = {Obligation.MEMORY: memory, Obligation.VALUES: values}
    return tuple(said.get(one, str(one)) for one in FULL_PROOF)


def obligation_of(entry: str) -> Obligation | None:
    """The obligation that an entry of `Proven.obligations` is about; None: none that is known."""
    name = entry.split(" ")[0]
    return next((one for one in FULL_PROOF if one == name), None)


def is_at_sample_only(proven: Proven) -> bool:
    """True if bytes are bounded at the sample only, though symbols have other values."""
    return _AT_SAMPLE in proven.obligations
