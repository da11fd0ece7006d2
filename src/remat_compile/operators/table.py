"""Effects of PyTorch's operators beside computing new tensors from their arguments.

`pytorch.txt` has it of every overload of `aten` and `prims`, as schemas and tags tell;
`tests/runners/make_operators.py` writes it from an installed PyTorch. Each word of its sections,
`aten.add.Tensor,Scalar`, names overloads of one operator; the head of a section has their flags:

    r     draws random numbers; `r5`: unless its argument 5, a dropout probability, is 0
    w     writes into its arguments; `w3,5`: where argument 3 is given and argument 5 is not false
    v     gives views of its first argument
    m     may do so, or may write: nothing tells
    u     leaves its result unwritten
    x c e n t q  may not be called, for a reason of `REASONS`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from ..ir.codecs import PACKS, READS, UNPACKS

PURE = frozenset(("aten", "prims", "torch_nn"))
"""PyTorch's own namespaces of tensor arithmetic."""

REASONS = {
    "x": "it trusts the sizes and indices it is given, and reads beyond its tensors",
    "c": "operators of its library do more than compute tensors",
    "e": "it returns nothing, so it is called for an effect",
    "n": "it returns no tensor",
    "q": "this release knows no such operator of PyTorch",
    "t": "it takes text and no tensor, so what it computes comes from elsewhere",
}


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of one operator, as the flags above say; without any it is a pure function whose
    results have storage of their own. Arguments are those of a call in the IR or in `fx`."""

    flags: str = ""

    @property
    def refusal(self) -> str | None:
        """Why a plan may not call it, whatever its arguments."""
        return next((why for flag, why in REASONS.items() if flag in self.flags), None)

    @property
    def is_view(self) -> bool:
        return "v" in self.flags

    @property
    def may_be_view(self) -> bool:
        return "v" in self.flags or "m" in self.flags

    @property
    def is_unwritten(self) -> bool:
        return "u" in self.flags

    def draws(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Attention draws nothing where its dropout probability is 0."""
        if "r" not in self.flags:
            return False
        place = re.search(r"r(\d+)", self.flags)
        if place is None:
            return True
        return bool(_given(args, kwargs, int(place[1]), "dropout_p"))

    def writes(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Batch norm writes the running statistics that it is given, while it trains."""
        if "w" not in self.flags:
            return False
        places = re.search(r"w(\d+),(\d+)", self.flags)
        if places is None:
            return True
        given = _given(args, kwargs, int(places[1]), "running_mean") is not None
        return given and _given(args, kwargs, int(places[2]), "training") is not False


def _given(
    args: Sequence[object], kwargs: Mapping[str, object], place: int, name: str
) -> object | None:
    return kwargs.get(name, args[place] if place < len(args) else None)


@lru_cache(maxsize=4096)
def effects(op: str) -> Effects | None:
    """Return the effects of the operator under a name of the IR; None for those of a user's
    libraries."""
    if op in PACKS or op in UNPACKS or op in READS:
        return Effects()
    known = _table()
    flags = known.get(op, known.get(f"{op.partition('.')[0]}.*"))
    return None if flags is None else Effects(flags)


@lru_cache(maxsize=1)
def _table() -> Mapping[str, str]:
    text = files(__package__).joinpath("pytorch.txt").read_text("utf-8")
    known: dict[str, str] = {}
    flags = ""
    for word in text.partition("\n\n")[2].split():
        if word[0] == "[":
            flags = word.strip("[]")
            continue
        name, _, overloads = word.rpartition(".")
        known |= {f"{name}.{overload}": flags for overload in overloads.split(",")}
    return known
