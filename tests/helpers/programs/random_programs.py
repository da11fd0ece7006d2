"""Random well-formed programs: views, phantoms, tokens, replay forms, buffer updates,
accumulation chains and symbols."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from remat_compile.ir.expr import (
    CeilDiv,
    Const,
    Expr,
    RoundUp,
    Sym,
    add,
    evaluate,
    floor_div,
    max_of,
    mul,
)
from remat_compile.ir.graph import (
    DTYPE_BYTES,
    ANode,
    ANodeKind,
    Arg,
    Atom,
    Call,
    CNode,
    Graph,
    Phase,
    Ref,
    Replay,
    View,
)
from remat_compile.ir.program import (
    Argument,
    Binding,
    BufferBinding,
    Header,
    ParamBinding,
    Program,
    Result,
    Symbol,
    Target,
)
from remat_compile.ir.span import Loc

LITERALS: tuple[Arg, ...] = (
    True,
    False,
    None,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    0.1,
    -0.0,
    1e-300,
    1e22,
    math.inf,
    -math.inf,
    math.nan,
    "",
    'a "quoted" \\ line\nbreak // no comment',
    "é…\u2028",
    (),
    (1, -1),
    ((2, True), None),
    Atom("dtype", "f32"),
    Atom("device", "cuda:0"),
    Atom("layout", "strided"),
    Atom("format", "contiguous_format"),
)

KEYWORD_NAMES = ("dim", "max", "dtype", "free", "keepdim", "of")


def _has_room(anode: ANode) -> bool:
    """Whether the bytes are certainly no fewer than shape and type take; else nothing is held."""
    match anode.size:
        case Const(size) if all(isinstance(extent, Const) for extent in anode.shape):
            extents = (extent.value for extent in anode.shape if isinstance(extent, Const))
            return size >= DTYPE_BYTES[anode.dtype] * math.prod(extents)
        case _:
            return False


def random_expr(rng: Random, symbols: Sequence[str], depth: int = 2) -> Expr:
    """An expression that is >= 0 wherever the symbols are."""
    kind = rng.randrange(8) if depth else rng.randrange(2)
    if kind == 1 and symbols:
        return Sym(rng.choice(symbols))
    if kind < 2:
        return Const(rng.choice((0, 1, 2, 3, 7, 64, 100, 4096)))

    def inner() -> Expr:
        return random_expr(rng, symbols, depth - 1)

    constant = rng.choice((1, 2, 3, 16, 512))
    match kind:
        case 2:
            return add(inner(), inner())
        case 3:
            return mul(inner(), inner())
        case 4:
            return floor_div(inner(), constant)
        case 5:
            return _folded(CeilDiv(inner(), constant), constant)
        case 6:
            return max_of(Const(0), add(inner(), mul(Const(-1), inner())))
        case _:
            return _folded(RoundUp(inner(), constant), constant)


def _folded(expr: CeilDiv | RoundUp, constant: int) -> Expr:
    inner = expr.dividend if isinstance(expr, CeilDiv) else expr.value
    if isinstance(inner, Const):
        return Const(evaluate(expr, {}))
    return inner if constant == 1 else expr


@dataclass
class _Builder:
    """Grows a graph statement by statement; every intermediate state is well-formed."""

    rng: Random
    symbols: tuple[str, ...]

    anodes: list[ANode] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    cnodes: list[CNode] = field(default_factory=list)
    readable: list[str] = field(default_factory=list)
    base: dict[str, str] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def anode(
        self, kind: ANodeKind, *, like: ANode | None = None, readable: bool = True, at: str = ""
    ) -> str:
        name = f"{at or kind[0]}{len(self.anodes)}"
        if like is not None:
            made = ANode(name, kind, like.dtype, like.shape, like.size)
        else:
            shape = tuple(
                random_expr(self.rng, self.symbols, 1) for _ in range(self.rng.randrange(3))
            )
            size = random_expr(self.rng, self.symbols)
            made = ANode(name, kind, self.rng.choice(("f32", "f64", "bf16", "i64")), shape, size)
            if not _has_room(made):
                made = replace(made, shape=(*shape, Const(0)))
        self.anodes.append(made)
        self.base[name] = name
        if readable:
            self.readable.append(name)
        return name

    def find(self, name: str) -> ANode:
        return next(a for a in self.anodes if a.name == name)

    def view(self) -> None:
        """A view of something readable, seldom through another view of it."""
        if not self.readable:
            return
        source = self.rng.choice(self.readable)
        name = f"v.{len(self.views)}"
        index = self.rng.choice((None, None, 0, 3))
        call = Call("aten.split.Tensor", (Ref(source), *self.literals()))
        self.views.append(View(name, self.base[source], call, index))
        self.base[name] = self.base[source]
        self.readable.append(name)

    def literals(self) -> tuple[Arg, ...]:
        literals: list[Arg] = [self.rng.choice(LITERALS) for _ in range(self.rng.randrange(3))]
        if self.symbols and self.chance(0.3):
            symbol = Sym(self.rng.choice(self.symbols))
            literals.append(self.rng.choice((symbol, add(mul(Const(2), symbol), Const(-1)))))
        return tuple(literals)

    def call(self, reads: Sequence[str]) -> Call:
        op = self.rng.choice(
            ("aten.mm.default", "aten.add.Tensor", "my_ns.op_1.out", "prims.neg.default")
        )
        refs: tuple[Arg, ...] = tuple(Ref(name) for name in reads)
        if len(refs) > 1 and self.chance(0.3):
            refs = (refs[0], refs[1:])
        kwargs: tuple[tuple[str, Arg], ...] = ()
        if self.chance(0.3):
            kwargs = ((self.rng.choice(KEYWORD_NAMES), self.rng.choice(LITERALS)),)
        return Call(op, (*refs, *self.literals()), kwargs)

    def pick(self, most: int = 3) -> list[str]:
        count = min(len(self.readable), 1 + self.rng.randrange(most))
        return list(dict.fromkeys(self.rng.choice(self.readable) for _ in range(count)))

    def cnode(
        self,
        phase: Phase,
        reads: Sequence[str],
        writes: Sequence[str | None],
        *,
        token: str | None = None,
        replay: Replay | None = None,
        of: tuple[str, ...] = (),
        call: Call | None = None,
    ) -> CNode:
        rng = self.rng
        small = (Const(0), Const(rng.randrange(5000)), random_expr(rng, self.symbols, 1))
        loc = rng.choice(
            (None, Loc("model.py", 12, "fc1"), Loc("", 0, "node/1"), Loc("a b.py", 3), Loc("", 0))
        )
        made = CNode(
            f"{phase[0].upper()}{len(self.cnodes)}",
            phase,
            tuple(writes),
            call or self.call(reads),
            replay,
            token,
            of,
            rng.choice(small),
            rng.choice((None, 0, 3, 2200, 12_400_000, 10**9, 1_234_567_891)),
            loc,
        )
        self.cnodes.append(made)
        return made


def _forward(b: _Builder, buffers: Sequence[str], last: bool) -> tuple[list[str], str | None]:
    """One forward cNode; returns the phantoms it writes and the pending buffer, if any."""
    if b.chance(0.5):
        b.view()
    reads = b.pick()
    writes: list[str | None] = [b.anode("output" if last else "act", readable=not last, at="a")]
    phantoms = []
    if b.chance(0.3):
        phantoms.append(b.anode("phantom", readable=False, at="p"))
        writes.append(phantoms[-1])
    if b.chance(0.2):
        writes.insert(b.rng.randrange(len(writes) + 1), None)
    kept = tuple(writes)
    pending = None
    fresh = [name for name in buffers if name not in b.updated]
    if fresh and b.chance(0.5):
        b.updated.add(fresh[0])
        reads = [*reads, fresh[0]] if fresh[0] not in reads else reads
        pending = b.anode("pending", like=b.find(fresh[0]), readable=False, at="n")
        writes.append(pending)
    replay = None
    token = None
    if pending or b.chance(0.2):
        pure = [name for name in reads if b.base[name] not in b.updated]
        cost = b.rng.choice((None, 77))
        replay = Replay(kept, b.call(pure), random_expr(b.rng, b.symbols, 1), cost)
    elif b.chance(0.3):
        token = b.anode("rng", readable=False, at="r")
    b.cnode("fwd", reads, writes, token=token, replay=replay)
    return phantoms, fresh[0] if pending else None


def _backward(b: _Builder, kind: ANodeKind, forward: Sequence[str], like: ANode) -> str:
    """A few backward cNodes that end in an aNode of this kind, maybe by accumulation."""
    for _ in range(b.rng.randrange(3)):
        b.cnode("bwd", b.pick(), [b.anode("grad")], of=_some(b.rng, forward))
    if not b.chance(0.5):
        final = b.anode(kind, like=like, readable=False)
        b.cnode("bwd", b.pick(), [final], of=_some(b.rng, forward))
        return final
    links = 1 + b.rng.randrange(2)
    reads = b.pick()
    current = b.anode("grad", like=like)
    b.cnode("bwd", reads, [current], of=_some(b.rng, forward))
    for link in range(links):
        # `pick` may have handed out views of `current`: none may be read after it ends.
        if b.chance(0.5):
            b.cnode("bwd", b.pick(), [b.anode("grad")])
        reads = b.pick()
        addend = b.anode("grad", like=like)
        b.cnode("bwd", reads, [addend])
        b.readable = [name for name in b.readable if b.base[name] != current]
        is_last = link == links - 1
        ended, current = current, b.anode(kind if is_last else "grad", like=like,
                                          readable=not is_last)  # fmt: skip
        b.cnode("bwd", (), [current], call=Call("accumulate", (Ref(ended), Ref(addend))))
    return current


def _some(rng: Random, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rng.choice(names) for _ in range(rng.randrange(3))))


def random_program(rng: Random, *, size: int = 5) -> Program:
    """A well-formed program with up to `size` forward cNodes; buffers are updated at most once."""
    symbols = tuple(
        Symbol(name, low, low + 63, low + rng.randrange(64), 0, axis)
        for axis, name in enumerate(("b", "s77")[: rng.randrange(3)])
        for low in (rng.choice((0, 1, 2)),)
    )
    names = tuple(s.name for s in symbols)
    b = _Builder(rng, names)
    inputs = [b.anode("input") for _ in range(1 + rng.randrange(2))]
    # The symbols are read from the shape of the first argument.
    first = replace(b.anodes[0], shape=(*map(Sym, names), *b.anodes[0].shape))
    b.anodes[0] = first if _has_room(first) else replace(first, shape=(*first.shape, Const(0)))
    params = [b.anode("param") for _ in range(1 + rng.randrange(3))]
    buffers = [b.anode("buffer", readable=False) for _ in range(rng.randrange(3))]
    constants = [b.anode("const") for _ in range(rng.randrange(2))]
    phantoms: list[str] = []
    updates: dict[str, str] = {}
    count = 1 + rng.randrange(size)
    for index in range(count):
        made, updated = _forward(b, buffers, index == count - 1)
        phantoms += made
        if updated is not None:
            updates[updated] = b.anodes[-1].name
    outputs = [a.name for a in b.anodes if a.kind == "output"]
    kind: ANodeKind = rng.choice(("tangent", "tangent", "output"))
    tangents = [b.anode(kind, like=b.find(name), at="t") for name in outputs]
    forward = [c.name for c in b.cnodes]
    seen = [*outputs, *updates.values()]
    b.cnode("loss", seen, tangents, call=Call("loss", tuple(Ref(name) for name in seen)))
    # Backward reads phantoms, and no buffer at all (its contents have changed).
    b.readable += phantoms
    trained = params[: 1 + rng.randrange(len(params))]
    grads = {p: _backward(b, "param_grad", forward, b.find(p)) for p in trained}
    input_grads = (
        ((0, _backward(b, "output", forward, b.find(inputs[0]))),) if b.chance(0.3) else ()
    )
    binding = Binding(
        tuple(Argument(f"args[{i}]", name) for i, name in enumerate(inputs)),
        tuple(
            ParamBinding((f"w.{i}", f'tied "{i}"')[: 1 + rng.randrange(2)], p, grads.get(p))
            for i, p in enumerate(params)
        ),
        tuple(
            BufferBinding((f"buf.{i}",), name, updates.get(name))
            for i, name in enumerate([*buffers, *constants])
        ),
        tuple(Result(o, t) for o, t in zip(outputs, tangents, strict=True)),
        input_grads,
        rng.choice(("fresh", "accumulate")),
    )
    graph = Graph("g", tuple(b.anodes), tuple(b.views), tuple(b.cnodes))
    return Program(graph, binding, _header(rng), symbols, _target(rng))


def _header(rng: Random) -> Header:
    return rng.choice(
        (
            Header(),
            Header(1, "cuda:0", 8, "2.13.0", "measured", "a model.onnx", "ab" * 32),
            Header(1, "cpu", 2, "2.13.0+cpu", "roofline", "-", None),
            Header(1, "my device", 2, "", "none", None, "00"),
        )
    )


def _target(rng: Random) -> Target:
    return rng.choice(
        (
            Target(),
            Target("h200", 139 << 30, 512, 128 << 30, 50 * 10**9, 50 * 10**9),
            Target("odd", 12345 << 40, 16, None, 999, None),
        )
    )
