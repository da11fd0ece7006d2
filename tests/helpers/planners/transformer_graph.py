"""A synthetic training step of transformer blocks. Bytes and nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.planners.graph_builder import Builder
from remat_compile.ir.graph import ANodeKind
from remat_compile.ir.program import Program


def transformer(
    blocks: int = 2,
    *,
    batch: int = 8,
    seq: int = 512,
    width: int = 768,
    heads: int = 12,
    dropout: bool = True,
) -> Program:
    """Transformer blocks of 17 forward and 17 backward cNodes (FACTS 9), f16, roofline
    times for about 100 Tflop/s and 1 TB/s."""
    made = _Transformer(batch, seq, width, heads, dropout)
    b = Builder("transformer")
    b.input("x0", made.t)
    for i in range(blocks):
        made.forward(b, i, last=i == blocks - 1)
    b.loss([f"x{blocks}"], [(f"d{blocks}", made.t)])
    for i in reversed(range(blocks)):
        made.backward(b, i)
    return b.program(granularity=512)


@dataclass(frozen=True)
class _Transformer:
    batch: int
    seq: int
    width: int
    heads: int
    dropout: bool

    @property
    def t(self) -> int:
        """Bytes of one value per token and channel."""
        return 2 * self.batch * self.seq * self.width

    @property
    def s(self) -> int:
        """Bytes of the attention scores."""
        return 2 * self.batch * self.heads * self.seq * self.seq

    @property
    def square(self) -> int:
        """Nanoseconds of a product with a square weight."""
        return max(1, 2 * self.batch * self.seq * self.width**2 // 100_000)

    @property
    def scores(self) -> int:
        return max(1, 2 * self.batch * self.seq**2 * self.width // 100_000)

    def weight(self, name: str) -> int:
        return (8 if name[1] in "fg" else 2) * self.width**2

    def forward(self, b: Builder, i: int, *, last: bool) -> None:
        t, s = self.t, self.s
        for w in ("wq", "wk", "wv", "wo", "wf", "wg"):
            b.param(f"{w}{i}", self.weight(w), f"d{w}{i}")

        def fwd(reads: str, writes: dict[str, int], time: int, drop: bool = False) -> None:
            named: list[tuple[str, ANodeKind, int]] = [
                (f"{n}{i}", "phantom" if n[:2] in ("st", "m1", "m2", "m3") else "act", size)
                for n, size in writes.items()
            ]
            token = f"r{i}_{next(iter(writes))}" if drop and self.dropout else None
            b.op([f"{r}{i}" for r in reads.split()], named, time=time, token=token)

        fwd("x", {"n1_": t, "st1_": t // 96}, _moved(3 * t))
        for p in "qkv":
            fwd(f"n1_ w{p}", {p: t}, self.square)
        fwd("q k", {"sc": s}, self.scores)
        fwd("sc", {"sm": s}, _moved(2 * s))
        fwd("sm", {"sd": s, "m1_": s // 2}, _moved(2 * s), True)
        fwd("sd v", {"at": t}, self.scores)
        fwd("at wo", {"pr": t}, self.square)
        fwd("pr", {"pd": t, "m2_": t // 2}, _moved(2 * t), True)
        fwd("x pd", {"y": t}, _moved(3 * t))
        fwd("y", {"n2_": t, "st2_": t // 96}, _moved(3 * t))
        fwd("n2_ wf", {"f": 4 * t}, 4 * self.square)
        fwd("f", {"ge": 4 * t}, _moved(8 * t))
        fwd("ge wg", {"h": t}, 4 * self.square)
        fwd("h", {"hd": t, "m3_": t // 2}, _moved(2 * t), True)
        kind: ANodeKind = "output" if last else "act"
        b.op([f"y{i}", f"hd{i}"], [(f"x{i + 1}", kind, t)], time=_moved(3 * t))

    def backward(self, b: Builder, i: int) -> None:
        t, s = self.t, self.s
        top = f"d{i + 1}"

        def bwd(reads: str, writes: dict[str, int], time: int) -> None:
            named: list[tuple[str, ANodeKind, int]] = [
                (f"{n}{i}", "param_grad" if n.startswith("dw") else "grad", size)
                for n, size in writes.items()
            ]
            names = [r if r == top else f"{r}{i}" for r in reads.split()]
            b.op(names, named, phase="bwd", time=time)

        w = self.weight("wq")
        bwd(f"{top} m3_", {"dh": t}, _moved(2 * t))
        bwd("dh ge wg", {"dge": 4 * t, "dwg": 4 * w}, 8 * self.square)
        bwd("dge f", {"df": 4 * t}, _moved(12 * t))
        bwd("df n2_ wf", {"dn2_": t, "dwf": 4 * w}, 8 * self.square)
        bwd("dn2_ y st2_", {"dy2_": t}, _moved(4 * t))
        b.accumulate(top, f"dy2_{i}", f"dy{i}", "grad", t)
        bwd("dy m2_", {"dpr": t}, _moved(2 * t))
        bwd("dpr at wo", {"dat": t, "dwo": w}, 2 * self.square)
        bwd("dat sd v", {"dsd": s, "dv": t}, 2 * self.scores)
        bwd("dsd m1_", {"dsm": s}, _moved(2 * s))
        bwd("dsm sm", {"dsc": s}, _moved(3 * s))
        bwd("dsc q k", {"dq": t, "dk": t}, 2 * self.scores)
        bwd("dv n1_ wv", {"dn1v_": t, "dwv": w}, 2 * self.square)
        bwd("dk n1_ wk dn1v_", {"dn1k_": t, "dwk": w}, 2 * self.square)
        bwd("dq n1_ wq dn1k_", {"dn1_": t, "dwq": w}, 2 * self.square)
        bwd("dn1_ x st1_", {"dx1_": t}, _moved(4 * t))
        b.accumulate(f"dy{i}", f"dx1_{i}", f"d{i}", "grad", t)


def _moved(moved_bytes: int) -> int:
    """Nanoseconds of an operator that is bound by memory."""
    return max(1, moved_bytes // 1000)
