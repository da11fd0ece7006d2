"""Packed values of `spec/semantics.md`: halves of a pair that an axiom speaks of, nothing else."""

from .operators import codec
from .read import Program, need

TYPES = {"bits": ("bool",)}  # what each codec packs


def keeps_pairs(p: Program) -> None:
    """Raises `Wrong` where a codec stands elsewhere, or others read what it has packed."""
    packed = dict[str, tuple[str, str]]()  # by which codec, of what
    written = {a: call for call in p.nodes.values() for a in call.made()}
    for name, call in p.nodes.items():
        half, kind = codec(call.operator)
        need(not call.replay or codec(call.replay.operator) == ("", ""), name, "packs again")
        if not half:
            need(not packed.keys() & {*p.reads(call)}, name, "reads a packed value")
            continue
        need(not call.replay and not call.token and len(call.results) == 1, name, "is no codec's")
        (made,), read = call.results, call.arguments[0]
        if half == "pack":
            need(call.arguments == [read] and p.base.get(read) == read, name, "packs no aNode")
            need(p.type[read][0] in TYPES.get(kind, ()), name, "packs what it has no axiom for")
            need(read in written and written[read].phase == call.phase == "fwd", name, "packs late")
            need((p.kind[read], p.kind[made]) == ("act", "phantom"), name, "packs no activation")
            packed[made] = kind, read
        else:
            need(packed.get(read, ("",))[0] == kind, name, "makes again what it has not packed")
            of = packed[read][1]
            need(call.arguments[1:] == [",", *p.type[of][1:]], name, "makes another shape")
            need(p.type[made] == p.type[of] and call.phase == "bwd", name, "makes another value")
            need(p.kind[made] == "grad", name, "makes what is kept")
    need(not packed.keys() & {b for a, b in p.base.items() if a != b}, "a view of a packed value")
