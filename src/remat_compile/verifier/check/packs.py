"""Packed values of `spec/grammar.md`: pairs that an axiom of a codec speaks of, nothing else."""

from math import prod
from typing import NamedTuple

from .operators import codec, given
from .read import Operation, Program, Words, expression, need

FLOATS = ("f64", "f32", "f16", "bf16")
POOLS = "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d "
POOLS += "avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
POOLS += " ".join(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))


class Codec(NamedTuple):
    """The types packed; what it makes of each element; whether unpacking is told the shape;
    operators that may read a stand-in as argument 1; the number of values."""

    types: tuple[str, ...]
    form: str
    is_told: bool = False
    readers: tuple[str, ...] = ()
    limit: float = float("inf")


CODECS = {
    "bits": Codec(("bool",), "bit", is_told=True),
    "signs": Codec(FLOATS, "bit"),
    "shape": Codec(FLOATS, "", False, tuple(f"aten.{p}_backward.default" for p in POOLS.split())),
    "narrow_u8": Codec(("i64",), "u8", limit=2**8),
    "narrow_i16": Codec(("i64",), "i16", limit=2**15),
    "narrow_i32": Codec(("i64",), "i32", limit=2**31),
}
SIGNED = "remat_compile.threshold_backward_signs.default"  # (%g, %p): threshold_backward(%g, %y, 0)
SAME = ("aten.detach.default", "aten.alias.default")
INDICES = {  # of the last axes of the first argument
    "aten.max_pool2d_with_indices.default": 2,
    "aten.max_pool3d_with_indices.default": 3,
    "aten.adaptive_max_pool2d.default": 2,
}


def keeps_pairs(p: Program) -> None:
    """Raises `Wrong` where a codec stands elsewhere, or others read what it gives."""
    packed, stands = dict[str, tuple[str, str]](), dict[str, str]()  # codec and source; codec
    written = {a: call for call in p.nodes.values() for a in call.made()}
    for name, call in p.nodes.items():
        half, kind = codec(call.operator)
        need(not call.replay or codec(call.replay.operator) == ("", ""), name, "packs again")
        if not half or call.operator == SIGNED:
            continue
        need(not call.replay and not call.token and len(call.made()) == 1, name, "is no codec's")
        need(kind in CODECS and len(call.results) == 1, name, "is of no codec")
        made, read = call.results[0], call.arguments[0]
        if half == "pack":
            need(call.arguments == [read] and p.base.get(read) == read, name, "packs no aNode")
            need(read in written and written[read].phase == call.phase == "fwd", name, "packs late")
            need((p.kind[read], p.kind[made]) == ("act", "phantom"), name, "packs no activation")
            may = p.type[read][0] in CODECS[kind].types and values(p, written[read], read)
            need(0 < may <= CODECS[kind].limit, name, "packs what it has no axiom for")
            need(as_packed(p, kind, made, p.type[read]), name, "makes another type or shape")
            packed[made] = kind, read
        else:
            unpacks = half == "unpack" and kind not in ("shape", "signs")
            need(unpacks and packed.get(read, ("", ""))[0] == kind, name, "has packed no such")
            of = p.type[packed[read][1]]
            words = [",", *of[1:]] if CODECS[kind].is_told else []
            need(call.arguments[1:] == words, name, "is told another shape")
            need(p.type[made] == of and call.phase == "bwd", name, "makes another value")
            need(p.kind[made] == "grad", name, "makes what is kept")
            stands[made] = kind
    for name, (operator, *words) in p.view.items():
        for read in (word for word in words if word in packed):
            if packed[read][0] == "signs" and operator in SAME:
                packed[name] = packed[read]
                continue
            like = [read, ",", *p.type[packed[read][1]][1:], ")"]
            shape = packed[read][0] == "shape" and operator == "aten.expand.default"
            need(shape and words == like, name, "is a view of a packed value")
            stands[name] = "shape"
        for kind in [stands[word] for word in words if word in stands]:
            need(operator in SAME or not CODECS[kind].readers, name, "is a view of a stand-in")
            stands[name] = kind
    for name, call in p.nodes.items():
        if call.operator == SIGNED:
            g, read = call.arguments[0], call.arguments[-1]
            need(call.arguments == [g, ",", read], name, "is told more")
            need(packed.get(read, ("", ""))[0] == "signs", name, "reads no signs")
            need(g in p.base and g not in packed and g not in stands, name, "reads no gradient")
            need(not call.replay and not call.token and call.phase == "bwd", name, "runs again")
            of = p.type[packed[read][1]]
            need([p.type.get(a) for a in call.results] == [of], name, "makes another value")
            continue
        for form in filter(None, [call, call.replay]):
            unpacks = codec(form.operator)[0] == "unpack"
            need(unpacks or not packed.keys() & {*form.arguments}, name, "reads a packed value")
            need(all(may_read(stands, form, a) for a in form.arguments), name, "reads a stand-in")


def may_read(stands: dict[str, str], call: Operation, a: str) -> bool:
    """Return whether an axiom speaks of a name where a call reads it."""
    own = CODECS[stands[a]] if a in stands else None
    if own is None or not own.readers:
        return own is None or call.operator != "accumulate"
    only = call.arguments.count(a) == 1 and given(call.arguments, 1, "") == [a]
    return only and call.operator in own.readers and "=" not in call.arguments


def as_packed(p: Program, kind: str, made: str, of: Words) -> bool:
    """Return whether a packed value has the type and shape of what is packed so. There is a byte
    for each eight elements if `n - 8 bytes` is nowhere above 0, which is kept for later."""
    form = CODECS[kind].form
    if form != "bit":
        return p.type[made] == [form or of[0], *(of[1:] if form else ["[", "1", "]"])]
    stack = of[:0:-1]
    n = "1"
    while stack.pop() != "]" and stack != ["]"]:
        n += f" {' '.join(expression(stack))} *"
    p.least.append(f"{n} 8 {p.size[made]} * -")
    element, _, *shape = p.type[made]
    stack = shape[::-1]
    return element == "u8" and bool(expression(stack)) and stack == ["]"]


def values(p: Program, call: Operation, made: str) -> float:
    """The number of values of an index, of any other value 1; infinite where it is not known."""
    if p.type[made][0] != "i64":
        return 1
    axes, first = INDICES.get(call.operator, 0), call.arguments[0]
    extents: Words = [word for word in p.type.get(first, ["", "[", "]"])[2:-1] if word != ","]
    known = axes and made == call.results[1:2][0] and len(extents) >= axes
    if not known or not all(word.isdecimal() for word in extents[-axes:]):
        return float("inf")
    return prod(map(int, extents[-axes:]))
