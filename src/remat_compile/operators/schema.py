"""Effects of operators of PyTorch by schema and tags, where the table has none."""

from __future__ import annotations

from functools import lru_cache

import torch

from .overloads import OpOverload
from .table import Effects, effects


@lru_cache(maxsize=4096)
def effects_of(op: OpOverload) -> Effects:
    """Return the effects of an operator: as the table says, or its schema and tags where it is not
    there."""
    known = effects(str(op))
    return Effects(flags_of(op)) if known is None or known.flags == "q" else known


def flags_of(op: OpOverload) -> str:
    """The flags of the table, as schema and tags of an operator tell them."""
    arguments, returns = op._schema.arguments, op._schema.returns
    taken, given = (" ".join(str(x.type) for x in part) for part in (arguments, returns))
    flags = "e" if not returns else "" if "Tensor" in given else "n"
    if "str" in taken and "Tensor" not in taken:
        flags += "t"
    if op._schema.is_mutable:
        flags += "w"
    if torch.Tag.nondeterministic_seeded in op.tags:
        names = [x.name for x in arguments]
        flags += f"r{names.index('dropout_p')}" if "dropout_p" in names else "r"
    if any(x.alias_info is not None and not x.alias_info.is_write for x in returns):
        flags += "v"
    return flags + "m" * (torch.Tag.maybe_aliasing_or_mutating in op.tags)
