"""PyTorch's own samples of its operators, planned and run beside eager.

    python tests/runners/run_operator_samples.py [NAME ...] [--dtype float32] [--each 3] [-o FILE]

Each differentiable sample of `op_db` is a module whose tensors are parameters and buffers. The
planner makes everything of the forward again before each use in the backward. Results and gradients
are to have the bits of eager, but for the sign of zeros, which is counted apart: some derivatives
go another way while they are traced. Ends with 1 where one differs and nothing was told, or where
one ends without a code. `-o` keeps the verdicts as lines of JSON; a second run goes on from there.
"""

from __future__ import annotations

import json
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

import remat_compile
from remat_compile.ir.diagnostics import FBError
from remat_compile.planners.kit import PlanResult, SearchPlanner, Task

LIMIT_S = 120
DEFECTS = ("differs", "crash", "late")


@dataclass(frozen=True)
class RedoAll(SearchPlanner):
    """Makes everything of the forward again before every use in the backward."""

    name: ClassVar[str] = "redo-all"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "a test"

    def search(self, task: Task) -> PlanResult:
        inst = task.instance
        order: list[int] = []
        for c in inst.capture:
            if inst.phase_C[c] == "bwd":
                needed, todo = set[int](), list(inst.reads_C[c])
                while todo:
                    writer = inst.writer_A[todo.pop()]
                    is_forward = writer >= 0 and inst.phase_C[writer] == "fwd"
                    if is_forward and inst.makable_C[writer] and writer not in needed:
                        needed.add(writer)
                        todo += inst.rereads_C[writer]
                order += sorted(needed)
            order.append(c)
        return task.answer(order)


class Sample(nn.Module):
    """One call of an operator: its tensors are parameters and buffers."""

    def __init__(self, op: Callable[..., Any], leaves: Sequence[Any], spec: TreeSpec) -> None:
        super().__init__()
        self.op, self.spec = (op,), spec  # a module as the operator is no part of this one
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for at in self.places:
            copied = leaves[at].detach().clone()
            if leaves[at].requires_grad:
                self.register_parameter(f"t{at}", nn.Parameter(copied))
            else:
                self.register_buffer(f"t{at}", copied)

    def forward(self) -> Any:
        leaves = list(self.leaves)
        for at in self.places:
            leaves[at] = getattr(self, f"t{at}")
        args, kwargs = tree_unflatten(leaves, self.spec)
        return tree_map(_scaled, self.op[0](*args, **kwargs))


def _scaled(made: Any) -> Any:
    """A view of a parameter alone is nothing that a plan computes."""
    return made * 1.5 if isinstance(made, Tensor) and made.requires_grad else made


def step(module: nn.Module) -> list[Tensor | None]:
    """The results and gradients of one step."""
    for parameter in module.parameters():
        parameter.grad = None
    torch.manual_seed(3)
    made = [leaf for leaf in tree_leaves(module()) if isinstance(leaf, Tensor)]
    outputs = [leaf for leaf in made if leaf.requires_grad]
    torch.autograd.backward(outputs, [torch.randn_like(leaf) for leaf in outputs])
    return [*(leaf.detach().clone() for leaf in made), *(p.grad for p in module.parameters())]


def alike(one: Tensor | None, other: Tensor | None, *, bits: bool) -> bool:
    """True if both hold the same numbers (any NaN is another's equal), or the same `bits`."""
    if one is None or other is None:
        return one is other
    form = [(t.dtype, t.shape, t.layout) for t in (one, other)]
    if form[0] != form[1]:
        return False
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    one, other = (t.resolve_conj().resolve_neg().contiguous() for t in (one, other))
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if not one.is_floating_point():
        return torch.equal(one, other)
    if not torch.allclose(one, other, 0, 0, equal_nan=True):
        return False
    return not bits or bool((one.signbit() == other.signbit())[~one.isnan()].all())


def verdict(op: Callable[..., Any], leaves: Sequence[Any], spec: TreeSpec) -> tuple[str, str]:
    """A word and, in words, why: `equal`, `signs` (of zeros), `told`, a code, `skipped` where
    eager alone fails or is not repeatable, or one of `DEFECTS`."""
    try:
        eager = Sample(op, leaves, spec)
        wanted, again = step(eager), step(eager)
    except Exception as error:  # whatever an operator refuses
        return "skipped", type(error).__name__
    if not all(alike(a, b, bits=True) for a, b in zip(wanted, again, strict=True)):
        return "skipped", "eager repeats nothing"
    signal.alarm(LIMIT_S)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ours = remat_compile.compile(
                Sample(op, leaves, spec), (), planner=RedoAll(), progress=False, cache=False
            )
            found = step(ours)
    except FBError as error:
        return error.diagnostics[0].code, error.diagnostics[0].message
    except TimeoutError:
        return "late", ""
    except Exception as error:
        return "crash", repr(error)
    finally:
        signal.alarm(0)
    pairs = list(zip(wanted, found, strict=True))
    if all(alike(a, b, bits=True) for a, b in pairs):
        return "equal", ""
    codes = sorted({str(w.message)[8:14] for w in told if str(w.message).startswith("warning[FB")})
    if codes:
        return "told", ", ".join(codes)
    return ("signs" if all(alike(a, b, bits=False) for a, b in pairs) else "differs"), ""


def samples(dtype: torch.dtype, each: int, names: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
    """The name of each operator, the operator, and at most `each` of its samples."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        name = ".".join(filter(None, (info.name, info.variant_test_name)))
        if names and name not in names:
            continue
        if not info.supports_autograd or dtype not in info.supported_dtypes("cpu"):
            continue
        every = list(info.sample_inputs("cpu", dtype, requires_grad=True))
        yield name, info.op, every[:: max(1, len(every) // each)][:each]


def _late(*_: object) -> None:
    raise TimeoutError


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Operators; all by default.")] = None,
    dtype: str = "float32",
    each: Annotated[int, typer.Option(help="Samples of each operator.")] = 3,
    out: Annotated[Path | None, typer.Option("-o", help="Keeps the verdicts.")] = None,
) -> None:
    """Counts verdicts; prints all that are not `equal`."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    rows = (
        [json.loads(line) for line in out.read_text().splitlines()] if out and out.exists() else []
    )
    known = {row[0] for row in rows}
    for name, op, chosen in samples(getattr(torch, dtype), each, names or []):
        if name in known:
            continue
        for sample in chosen:
            leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
            rows.append((name, *verdict(op, leaves, spec)))
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    for name, word, why in rows:
        if word not in ("equal", "skipped"):
            print(f"{word} | {name} | {' '.join(why.split())[:200]}")
    print(", ".join(f"{count} {word}" for word, count in Counter(r[1] for r in rows).most_common()))
    raise SystemExit(any(row[1] in DEFECTS for row in rows))


if __name__ == "__main__":
    typer.run(main)
