"""A training step of one micro-batch as a chain of layers, and the exact bytes of its stages.

Layers are the blocks between 1-separators of the forward (`ir/analysis/separators.py`), the loss in
the last; a backward cNode is where the forward is that it belongs to.
A stage can begin where what crosses is the separator alone, forward and back: no parameter,
updated buffer or other value is used on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from ...ir.analysis.separators import chain_of
from ...ir.diagnostics import Note, fail
from ...ir.graph import CALLER_KINDS, DTYPE_BYTES
from ...ir.pipeline import PipelineStage, StageProgram
from ...ir.program import Program
from ...ir.semantics.sizes import Sizes
from ..chains.stages import needed_at_start, needed_part, profile_of, written_by
from ..instance import Instance
from .layers import Layers, Range


@dataclass(frozen=True)
class StageParts:
    """The cNodes of a stage by number, as they run (the loss in the last forward, `weights` in a
    third pass), and its bytes as `ir/pipeline.py` has them."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    kept: frozenset[int]
    tokens: frozenset[int]
    reads_input: bool
    reads_output: bool
    held_bytes: int
    keep_bytes: int
    forward_extra_bytes: int
    backward_extra_bytes: int
    weights: tuple[int, ...] = ()
    weight_keep_bytes: int = 0
    weight_extra_bytes: int = 0


UpdateBytes = Callable[[tuple[str, ...]], tuple[int, int]]


class StepLayers:
    """`forward_L[l]` and `backward_L[l]` are cNodes; `act_B[b]` and `grad_B[b]` the aNodes that
    cross boundary b. `update_bytes` tells, by names of parameters, the bytes of an optimizer's
    states and what its step takes for itself."""

    def __init__(self, program: Program, update_bytes: UpdateBytes | None = None):
        self.program = program
        self._update_bytes = cache(update_bytes or (lambda _: (0, 0)))
        self.instance = inst = Instance.of(program, "device")
        index = {name: c for c, name in enumerate(inst.names_C)}
        self.forward_L = [[index[name] for name in block] for block in chain_of(program)]
        self.layer_C = {c: layer for layer, cs in enumerate(self.forward_L) for c in cs}
        self.layer_C[inst.loss] = len(self.forward_L) - 1
        self.forward_L[-1].append(inst.loss)
        self.act_B = [self._activations(b) for b in range(len(self) + 1)]
        self.backward_L: list[list[int]] = [[] for _ in self.forward_L]
        for c in inst.capture:
            if c not in self.layer_C:
                layer = self.layer_C[c] = self._backward_layer(c, index)
                self.backward_L[layer].append(c)
        self.grad_B = [self._gradients(b) for b in range(len(self) + 1)]

    def _backward_layer(self, c: int, index: Mapping[str, int]) -> int:
        """The layer of a backward cNode: that of its forward cNodes, but no later than the makers
        of the gradients it reads. A sum of gradients has the latest layer that has all it reads."""
        inst = self.instance
        of = [self.layer_C[index[name]] for name in self.program.graph.cnode[inst.names_C[c]].of]
        limits = list(of)
        for a in inst.reads_C[c]:
            maker = inst.writer_A[a]
            if maker not in self.layer_C:
                continue
            layer = self.layer_C[maker]
            if inst.phase_C[maker] != "fwd":
                limits.append(layer)
            elif not of:
                limits.append(layer + (a in self.act_B[layer + 1]))
        return min(limits, default=len(self) - 1)

    def __len__(self) -> int:
        return len(self.forward_L)

    def bytes_of(self, anodes: Iterable[int]) -> int:
        return sum(self.instance.size_A[a] for a in anodes)

    @cached_property
    def made_A(self) -> dict[int, tuple[int, bool]]:
        """For each aNode that the step makes: its layer, and whether the forward makes it. What the
        loss makes counts as the backward's."""
        inst = self.instance
        return {
            a: (layer, inst.phase_C[c] == "fwd")
            for c, layer in self.layer_C.items()
            for a in inst.writes_C[c]
        }

    @cached_property
    def backward_readers(self) -> dict[int, set[int]]:
        """The layers whose backward reads each aNode."""
        readers: dict[int, set[int]] = {}
        for layer, cnodes in enumerate(self.backward_L):
            for c in cnodes:
                for a in self.instance.reads_C[c]:
                    readers.setdefault(a, set()).add(layer)
        return readers

    def _activations(self, b: int) -> frozenset[int]:
        """The storages that the forward right before b makes and any forward behind reads."""
        if not 0 < b < len(self):
            return frozenset()
        inst = self.instance
        read = {a for c in self.forward_L[b] if c != inst.loss for a in inst.reads_C[c]}
        made = {a for c in self.forward_L[b - 1] for a in inst.writes_C[c]}
        return frozenset(read & made)

    def _gradients(self, b: int) -> frozenset[int]:
        """The storages that backwards from b on make and backwards before b read."""
        if not 0 < b < len(self):
            return frozenset()
        return frozenset(
            a
            for a, (layer, forward) in self.made_A.items()
            if not forward and layer >= b and min(self.backward_readers.get(a, {b})) < b
        )

    @cached_property
    def obstacles_B(self) -> dict[int, str]:
        """Boundaries at which no stage can begin, with what stands in the way."""
        inst, graph = self.instance, self.program.graph
        found: dict[int, str] = {}

        def bar(low: int, high: int, why: str) -> None:
            for b in range(low + 1, high + 1):
                found.setdefault(b, why)

        for c, layer in self.layer_C.items():
            for a in inst.reads_C[c]:
                name = inst.names_A[a]
                if a not in self.made_A or (c == inst.loss and graph.anode[name].kind == "pending"):
                    continue  # what the forward makes for a buffer is written where it is made
                maker, forward = self.made_A[a]
                near = a in self.act_B[layer] or (maker == layer and forward)
                if forward and not near:
                    bar(min(maker, layer), max(maker, layer), f"%{name} is read on both sides")
                elif not forward and maker > layer + 1:
                    bar(layer, maker, f"the gradient %{name} is read further before")
        for names, what, layers in self._caller_spans():
            bar(min(layers), max(layers), f"{what} {' = '.join(names)} is used on both sides")
        for b in range(1, len(self)):
            if not self.act_B[b]:
                found.setdefault(b, "nothing crosses")
        return found

    @cached_property
    def _caller_uses(self) -> dict[str, set[int]]:
        """The layers that read each aNode of the caller."""
        graph, names = self.program.graph, self.instance.names_C
        uses: dict[str, set[int]] = {}
        for c, layer in self.layer_C.items():
            for name in graph.reads(graph.cnode[names[c]]):
                if graph.anode[name].kind in CALLER_KINDS:
                    uses.setdefault(name, set()).add(layer)
        return uses

    def _caller_spans(self) -> Iterator[tuple[tuple[str, ...], str, set[int]]]:
        """Parameters and updated buffers with the layers that read them or make their gradient."""
        index, storage = self.instance.index_A, self.program.graph.storage
        for p in self.program.binding.params:
            layers = set(self._caller_uses.get(p.name, ()))
            if p.grad is not None and (made := self.made_A.get(index[storage[p.grad]])):
                layers.add(made[0])
            if layers:
                yield p.names, "the parameter", layers
        for x in self.program.binding.buffers:
            if x.update is not None and (layers := self._caller_uses.get(x.name, set())):
                yield x.names, "the buffer", layers

    def _held_bytes(self, stage: Range, microbatches: int) -> int:
        """Parameters, their gradients and states of an optimizer, buffers (twice if they are
        updated: the new contents stand aside until all ranks have ended), the inputs of all
        micro-batches, and their losses."""
        sizes, graph = Sizes.of(self.program).anode, self.program.graph
        updated = {x.name for x in self.program.binding.buffers if x.update is not None}
        total = 0
        for name, layers in self._caller_uses.items():
            if layers.isdisjoint(range(*stage)):
                continue
            copies = microbatches if graph.anode[name].kind == "input" else 1
            total += sizes[name] * (copies + (name in updated))
        if stage[1] == len(self):
            made = [graph.anode[graph.storage[r.name]] for r in self.program.binding.results]
            total += microbatches * sum(DTYPE_BYTES.get(a.dtype, 0) for a in made if not a.shape)
        return total + self.weight_bytes(stage) + self.update_bytes(stage)[0]

    def update_bytes(self, *stages: Range) -> tuple[int, int]:
        """Bytes of the optimizer's states of these stages' parameters, and what its step takes."""
        index, storage = self.instance.index_A, self.program.graph.storage
        made = {a for stage in stages for a in self.param_grads(stage)}
        names = [
            p.names[0]
            for p in self.program.binding.params
            if p.grad is not None and index[storage[p.grad]] in made
        ]
        return self._update_bytes(tuple(names))

    def weight_bytes(self, stage: Range) -> int:
        """Bytes of the gradients that a stage makes, so of its parameters that train."""
        made = self.param_grads(stage)
        index, storage = self.instance.index_A, self.program.graph.storage
        # Gradients of one storage become two.
        each = [index[storage[p.grad]] for p in self.program.binding.params if p.grad is not None]
        return self.bytes_of(a for a in each if a in made)

    def param_grads(self, stage: Range) -> set[int]:
        """The gradients of parameters that a stage's backward makes, as its caller finds them."""
        i, j = stage
        graph, inst = self.program.graph, self.instance
        index = inst.index_A
        final = {
            index[graph.storage[p.grad]] for p in self.program.binding.params if p.grad is not None
        }
        return {a for a in final if a in self.made_A and i <= self.made_A[a][0] < j}

    @cached_property
    def _again_C(self) -> list[bool]:
        """The cNodes that may run again; a random one whose state takes more than it makes may not,
        its results are kept."""
        inst = self.instance
        return [
            makable and (token < 0 or inst.size_A[token] < self.bytes_of(writes))
            for makable, token, writes in zip(
                inst.makable_C, inst.token_C, inst.rewrites_C, strict=True
            )
        ]

    def _segment(self, stage: Range, a: int, b: int) -> tuple[int, ...]:
        """The forward cNodes of layers [a, b) that run again right before their backward: they make
        what that backward alone reads."""
        inst = self.instance
        forward = [c for layer in range(a, b) for c in self.forward_L[layer] if c != inst.loss]
        there, wanted = set(self.act_B[b]), set()
        for c in forward:
            for x in inst.writes_C[c]:
                readers = self.backward_readers.get(x, set()) & set(range(*stage))
                if not self._again_C[c] or not readers <= set(range(a, b)):
                    there.add(x)
                elif readers:
                    wanted.add(x)
        return needed_part(inst, forward, wanted - there, there, again=True)

    def weights(self, i: int, j: int) -> set[int]:
        """The backward cNodes of layers [i, j) on which no gradient that passes from layer to layer
        depends, and that read neither the output of their layer nor what a backward adds to."""
        inst = self.instance
        needed = {a for b in range(i, j) for a in self.grad_B[b]}
        gone: set[int] = set()
        found = set()
        for layer in range(i, j):
            for c in reversed(self.backward_L[layer]):
                reads = set(inst.reads_C[c])
                is_free = reads.isdisjoint(self.act_B[layer + 1] | gone)
                if is_free and needed.isdisjoint(inst.writes_C[c]):
                    found.add(c)
                else:
                    needed |= reads
                    gone.add(inst.ends_C[c])
        return found

    def _draw_bytes(self, forward: Iterable[int], beside: int) -> int:
        """Bytes that random cNodes take above `beside`.

        Each of them runs once before the row; a forward that draws also reads a state.
        """
        inst = self.instance
        random = [c for c, token in enumerate(inst.token_C) if token >= 0]
        most = max(
            (inst.workspace_C[c] + self.bytes_of(inst.writes_C[c]) for c in random), default=0
        )
        state = max((inst.size_A[inst.token_C[c]] for c in forward if c in random), default=0)
        return max(most - beside, state)

    def parts(
        self,
        i: int,
        j: int,
        microbatches: int,
        *,
        remade: Sequence[Range] = (),
        defers: bool = False,
    ) -> StageParts:
        """The stage of layers [i, j), its bytes by its own steps. The segments `remade` run again
        right before their backward. With `defers` gradients of parameters are left to a third pass,
        but for those that read the stage's output."""
        inst = self.instance
        forward = tuple(c for layer in range(i, j) for c in self.forward_L[layer])
        again = {b - 1: self._segment((i, j), a, b) for a, b in remade}
        backward = tuple(
            c
            for layer in reversed(range(i, j))
            for c in (*again.get(layer, ()), *self.backward_L[layer])
        )
        later = self.weights(i, j) if defers else set()
        weights = tuple(c for c in backward if c in later)
        backward = tuple(c for c in backward if c not in later)
        start = needed_at_start(inst, (*backward, *weights), again=True)
        output = self.act_B[j]
        kept = (
            frozenset(
                a for a in start if self.made_A.get(a, (j, False))[1] and i <= self.made_A[a][0] < j
            )
            - output
        )
        tokens = frozenset(inst.token_C[c] for run in again.values() for c in run) - {-1}
        keep = self.bytes_of(kept | tokens)
        # The loss makes the tangents, which its backward reads: they are kept until then.
        loss = frozenset(inst.writes_C[inst.loss]) if j == len(self) else frozenset()
        keep += self.bytes_of(loss)
        held = kept | tokens | loss
        _, during = profile_of(inst, forward, (), held | output, again=False, tokens=tokens)
        beside = keep + self.bytes_of(output)
        # The optimizer's step comes when nothing is kept, mostly within what a forward takes.
        _, update = self.update_bytes((i, j))
        forward_extra = max(
            0, max(during) - beside, self._draw_bytes(forward, beside), update - beside
        )
        given, passed = self.grad_B[j] | loss, self.grad_B[i]
        made = written_by(inst, backward, again=True)
        read = {a for c in weights for a in inst.reads_C[c]}
        late = (read & (kept | loss | made)) - self.grad_B[j]
        _, during = profile_of(inst, backward, kept | given, given | passed | late, again=True)
        rest = keep - self.bytes_of(tokens) + self.bytes_of(self.grad_B[j]) + self.bytes_of(passed)
        _, behind = profile_of(inst, weights, late | given, given, again=False)
        return StageParts(
            forward,
            backward,
            kept,
            tokens,
            bool(start & self.act_B[i]),
            bool(start & output),
            self._held_bytes((i, j), microbatches),
            keep,
            forward_extra,
            max(0, max(during) - rest),
            weights,
            self.bytes_of(late),
            max(0, max(behind) - self.bytes_of(late | self.grad_B[j])) if weights else 0,
        )

    def parts_of(self, stage: PipelineStage, microbatches: int) -> StageParts:
        """Bytes of a stage as it is declared."""
        defers = "wgt" in stage.passes
        i, j = stage.first, stage.last
        return self.parts(i, j, microbatches, remade=stage.remade, defers=defers)

    def layers(
        self,
        ranks: int,
        memory_bytes: int | None,
        link_bytes_per_s: int | None,
        microbatches: int,
    ) -> Layers:
        """The problem for planners: bytes of a stage are at least those of `parts`."""
        inst, n = self.instance, len(self)
        each = [self.parts(layer, layer + 1, microbatches) for layer in range(n)]
        least = [self.parts(x, x + 1, 1, remade=((x, x + 1),)).keep_bytes for x in range(n)]
        reads = [self.backward_reads(b) for b in range(n + 1)]
        inputs = [
            self.bytes_of(self.act_B[layer]) if any(reads[layer]) else 0 for layer in range(n)
        ]
        return Layers(
            forward_ns_L=tuple(sum(inst.time_C[c] for c in cs) for cs in self.forward_L),
            backward_ns_L=tuple(sum(inst.time_C[c] for c in cs) for cs in self.backward_L),
            kept_bytes_L=tuple(p.keep_bytes + x for p, x in zip(each, inputs, strict=True)),
            held_bytes_L=tuple(p.held_bytes for p in each),
            activation_bytes_B=tuple(map(self.bytes_of, self.act_B)),
            gradient_bytes_B=tuple(map(self.bytes_of, self.grad_B)),
            ranks=ranks,
            memory_bytes=memory_bytes,
            link_bytes_per_s=link_bytes_per_s,
            microbatches=microbatches,
            inner_bytes_L=tuple(max(0, p.keep_bytes - x) for p, x in zip(each, least, strict=True)),
            extra_bytes_L=tuple(self._extra(layer, each[layer]) for layer in range(n)),
            weight_ns_L=tuple(
                sum(inst.time_C[c] for c in self.weights(layer, layer + 1)) for layer in range(n)
            ),
            input_read_B=tuple(behind for behind, _ in reads),
            output_read_B=tuple(before for _, before in reads),
            uncuttable_B=frozenset(self.obstacles_B),
        )

    def bound_layers(self, layers: Layers) -> Layers:
        """The same with bytes that are at most those of any stage."""
        weights = [self.weight_bytes((layer, layer + 1)) for layer in range(len(self))]
        return replace(
            layers,
            held_bytes_L=tuple(weights),
            inner_bytes_L=(),
            extra_bytes_L=(),
            counts_buffers=False,
        )

    def _extra(self, layer: int, parts: StageParts) -> int:
        """Bytes that a layer takes inside a stage, where its input and output, and the gradients of
        both, are no buffers of a cut."""
        around = (self.act_B, self.grad_B)
        inner = sum(self.bytes_of(x[b]) for x in around for b in (layer, layer + 1))
        return max(parts.forward_extra_bytes, parts.backward_extra_bytes) + inner

    def backward_reads(self, b: int) -> tuple[bool, bool]:
        """True where backwards behind and before boundary b read what crosses it."""
        layers = {x for a in self.act_B[b] for x in self.backward_readers.get(a, ())}
        return any(x >= b for x in layers), any(x < b for x in layers)

    def name(self, layer: int) -> str:
        """The module in which a layer begins, if the graph says so."""
        graph, names = self.program.graph, self.instance.names_C
        places = (graph.cnode[names[c]].loc for c in self.forward_L[layer])
        return next((place.module for place in places if place and place.module), "")

    def _crossing(self) -> list[str]:
        """The values that cross inside the longest block of the forward, at the narrowest place."""
        inst = self.instance
        block = [c for c in max(self.forward_L, key=len) if c != inst.loss]
        made: set[int] = set()
        crossing = []
        for n, c in enumerate(block[:-1], 1):
            made |= set(inst.writes_C[c])
            crossing.append(made & {a for later in block[n:] for a in inst.reads_C[later]})
        names = sorted(inst.names_A[a] for a in min(crossing, key=len, default=()))
        both = " and ".join(f"%{name}" for name in names[:3])
        return [f"{both} cross every cut of the longest block"] if names else []

    def check(self, ranks: int) -> None:
        """FB1022 for a chain that cannot be cut for so many ranks, with what stands in the way."""
        stages = len(self) - len(self.obstacles_B)
        if ranks < 1 or ranks > stages:
            why = [*dict.fromkeys(self.obstacles_B.values()), *self._crossing()]
            notes = [Note(each) for each in why][:5]
            message = f"{ranks} ranks for a model that falls into {stages} stages at most"
            hint = f"1 to {stages} ranks" if stages > 1 else "plan it for one rank"
            fail("FB1022", message, None, *notes, hint=hint, usage=True)

    def stage_program(self, stage: PipelineStage) -> StageProgram:
        """A stage by names."""
        cnodes, anodes = self.instance.names_C, self.instance.names_A
        i, j = stage.first, stage.last
        parts = self.parts_of(stage, 1)

        def named(some: Iterable[int]) -> tuple[str, ...]:
            return tuple(anodes[a] for a in sorted(some))

        return StageProgram(
            tuple(cnodes[c] for c in parts.forward),
            tuple(cnodes[c] for c in parts.backward),
            frozenset(named(parts.kept | parts.tokens)),
            named(self.act_B[i]),
            named(self.act_B[j]),
            named(self.grad_B[j]),
            named(self.grad_B[i]),
            tuple(cnodes[c] for c in parts.weights),
        )
