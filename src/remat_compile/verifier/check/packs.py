"""Packed values of `spec/grammar.md`: pairs that an axiom of a codec speaks of, nothing else."""

from math import prod
from typing import NamedTuple

from .operators import codec, given
from .read import Operation, Program, Words, expression, need

FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
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
LOSSY, EXACT = Codec(FLOATS, "u8"), Codec((*FLOATS, "bool", *INTEGERS), "u8")
EXPONENTIATED = {
    "aten._log_softmax_backward_data.default": 1,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 5,
    "aten._scaled_dot_product_flash_attention_backward.default": 5,
    "aten._scaled_dot_product_efficient_attention_backward.default": 6,
}
CONVOLUTION = "aten.convolution_backward.default"  # result 1 alone reads argument 1
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
        need(len(call.results) == 1, name, "is of no codec")
        made, read = call.results[0], call.arguments[0]
        if half == "pack":
            seeds = call.arguments[1:] if kind not in CODECS else []
            plain = not seeds or (seeds[0] == "," and seeds[1].isdecimal() and len(seeds) == 2)
            need(plain and call.arguments == [read, *seeds], name, "packs more")
            need(p.base.get(read) == read, name, "packs no aNode")
            need(read in written and written[read].phase == call.phase == "fwd", name, "packs late")
            need((p.kind[read], p.kind[made]) == ("act", "phantom"), name, "packs no activation")
            own = CODECS.get(kind, EXACT if kind in p.axioms else LOSSY)
            may = p.type[read][0] in own.types and values(p, written[read], read)
            need(0 < may <= own.limit, name, "packs what it has no axiom for")
            need(
                kind not in CODECS or as_packed(p, kind, made, p.type[read]),
                name,
                "makes another type or shape",
            )
            packed[made] = kind, read
        else:
            unpacks = half == "unpack" and kind not in ("shape", "signs")
            need(unpacks and packed.get(read, ("", ""))[0] == kind, name, "has packed no such")
            of = p.type[packed[read][1]]
            told = call.arguments[1:]
            words = [",", *of[1:]] if kind in CODECS and CODECS[kind].is_told else []
            need(told == words or kind not in CODECS, name, "is told another shape")
            need(not {*told} & {*p.base}, name, "reads more than what is packed")
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
            need(operator in SAME or not readers(p, kind), name, "is a view of a stand-in")
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
            need(
                all(may_read(p, stands, form, a) for a in form.arguments), name, "reads a stand-in"
            )


def readers(p: Program, kind: str) -> frozenset[tuple[str, int]]:
    """The places where alone what a codec gives back may be read; nothing: everywhere."""
    if kind in CODECS:
        return frozenset((operator, 1) for operator in CODECS[kind].readers)
    return p.axioms.get(kind, frozenset())


def may_read(p: Program, stands: dict[str, str], call: Operation, a: str) -> bool:
    """Return whether the contract of a codec allows a name where a call reads it."""
    if a not in stands:
        return True
    if is_lossy(p, stands[a]):
        place = EXPONENTIATED.get(call.operator, len(call.arguments))
        return call.operator != "accumulate" and a not in given(call.arguments, place, "")
    places = readers(p, stands[a])
    if not places:
        return call.operator != "accumulate"
    once = call.arguments.count(a) == 1 and "=" not in call.arguments
    return once and any(
        operator == call.operator and given(call.arguments, place, "") == [a]
        for operator, place in places
    )


def is_lossy(p: Program, kind: str) -> bool:
    return kind not in CODECS and kind not in p.axioms


def approximate(p: Program) -> frozenset[str]:
    """All that is computed of what a lossy codec gives back. It is of floats, and a gradient."""
    start, found = set[str](), set[str]()
    leaving = {second for kind, _, second in p.bound if kind == "arg"}
    for name, call in p.nodes.items():
        half, kind = codec(call.operator)
        if half == "unpack" and is_lossy(p, kind):
            start |= {*call.made()}
            continue
        forms = [call] + ([call.replay] if call.replay else [])
        read = {p.base.get(a, a) for form in forms for a in p.reads(form)} & (start | found)
        if not read:
            continue
        made = call.made()
        if call.operator == CONVOLUTION and not read & found:
            word = given(call.arguments, 1, "")
            others = {p.base[a] for a in call.arguments if a in p.base and [a] != word}
            if call.arguments.count(word[0]) == 1 and not read & others:
                made = [a for a in call.results[1:2] if a != "_"]
        for a in made:
            is_gradient = p.kind[a] in ("grad", "param_grad") or a in leaving
            need(is_gradient and p.type[a][0] in FLOATS, name, "makes no gradient of a lossy value")
        found |= {*made}
    return frozenset(a.removeprefix("%") for a in found)


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
