"""Collects a synthetic training step as a Program. Bytes and nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence

from remat_compile.ir.expr import Const
from remat_compile.ir.graph import (
    ACCUMULATE_OP,
    LOSS_OP,
    ANode,
    ANodeKind,
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
    ParamBinding,
    Program,
    Result,
    Target,
)
from remat_compile.ir.span import Loc


class Builder:
    """Collects nodes in the order of capture."""

    def __init__(self, name: str):
        self.name = name
        self.anodes: list[ANode] = []
        self.views: list[View] = []
        self.cnodes: list[CNode] = []
        self.params: list[ParamBinding] = []
        self.buffers: list[BufferBinding] = []
        self.arguments: list[Argument] = []
        self.results: list[Result] = []
        self.tangents: set[str] = set()

    def storage(self, name: str, kind: ANodeKind, size: int) -> str:
        if kind == "tangent":
            self.tangents.add(name)
        self.anodes.append(ANode(name, kind, "u8", (Const(size),), Const(size)))
        return name

    def input(self, name: str, size: int) -> str:
        self.arguments.append(Argument(f"args[{len(self.arguments)}]", name))
        return self.storage(name, "input", size)

    def param(self, name: str, size: int, grad: str | None = None) -> str:
        self.params.append(ParamBinding((name,), name, grad))
        return self.storage(name, "param", size)

    def op(
        self,
        reads: Sequence[str],
        writes: Sequence[tuple[str, ANodeKind, int]],
        *,
        phase: Phase = "fwd",
        time: int = 10,
        workspace: int = 0,
        op: str = "toy.op.default",
        of: Sequence[str] = (),
        token: str | None = None,
        replay: Sequence[str | None] | None = None,
    ) -> str:
        """Adds a cNode and its results; `replay` names the results of its replay form."""
        name = f"{phase[0].upper()}{len(self.cnodes)}"
        names = tuple(self.storage(*write) for write in writes)
        call = Call(op, tuple(Ref(r) for r in reads))
        again = None
        if replay is not None:
            kept = tuple(r for r in reads if not r.startswith("rm"))
            form = Call(f"{op}_replay", tuple(Ref(r) for r in kept))
            again = Replay(tuple(replay), form, Const(workspace), time)
        if token is not None:
            self.storage(token, "rng", 16)
        self.cnodes.append(
            CNode(
                name,
                phase,
                names,
                call,
                again,
                token,
                tuple(of),
                Const(workspace),
                time_ns=time,
                loc=Loc("model.py", len(self.cnodes) + 1, f"layer{len(self.cnodes)}"),
            )
        )
        return name

    def loss(self, reads: Sequence[str], tangents: Sequence[tuple[str, int]]) -> str:
        for read, (tangent, _) in zip(reads, tangents, strict=False):
            self.results.append(Result(read, tangent))
        return self.op(
            reads,
            [(name, "tangent", size) for name, size in tangents],
            phase="loss",
            time=0,
            op=LOSS_OP,
        )

    def accumulate(self, g1: str, c: str, g2: str, kind: ANodeKind, size: int) -> str:
        """Adds in place; a tangent belongs to the caller, so there the sum is another storage."""
        if g1 in self.tangents:
            return self.op([g1, c], [(g2, kind, size)], phase="bwd")
        return self.op([g1, c], [(g2, kind, size)], phase="bwd", op=ACCUMULATE_OP)

    def program(self, granularity: int = 1) -> Program:
        graph = Graph(self.name, tuple(self.anodes), tuple(self.views), tuple(self.cnodes))
        binding = Binding(
            tuple(self.arguments), tuple(self.params), tuple(self.buffers), tuple(self.results)
        )
        return Program(graph, binding, target=Target(granularity_bytes=granularity))
