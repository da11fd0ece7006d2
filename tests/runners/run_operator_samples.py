"""PyTorch's own samples of its operators, planned and run beside eager.

    python tests/runners/run_operator_samples.py [NAME ...] [--dtype float32] [--each 3] [-o FILE]
    python tests/runners/run_operator_samples.py --backend jax --dtype float64

Each differentiable sample of `op_db` is a module whose tensors are parameters and buffers. The
planner makes everything of the forward again before each use in the backward. Results and gradients
are to have the bits of eager, but for the sign of zeros, which is counted apart: some derivatives
go another way while they are traced. Ends with 1 where one differs and nothing was told, or where
one ends without a code. In JAX they are to be near eager's (float64; other kernels), and samples
that draw are skipped. `-o` keeps the verdicts as lines of JSON; a second run goes on from there.
"""

from __future__ import annotations

import json
import math
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

import remat_compile
from remat_compile.ir.diagnostics import FBError
from remat_compile.planners.kit import PlanResult, SearchPlanner, Task

LIMIT_S = 120
QUIET: Any = {"progress": False, "cache": False}
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
    """One call of an operator: its tensors are parameters and buffers, or with `inputs` arguments
    beside a parameter that scales the results."""

    def __init__(
        self, op: Callable[..., Any], leaves: Sequence[Any], spec: TreeSpec, *, inputs: bool
    ) -> None:
        super().__init__()
        self.op, self.spec = (op,), spec  # a module as the operator is no part of this one
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.given: list[Tensor] = []
        # A view of a parameter alone is nothing that a plan computes.
        self.scale: nn.Parameter | float = nn.Parameter(torch.tensor(1.5)) if inputs else 1.5
        for at in self.places:
            copied = leaves[at].detach().clone()
            if inputs:
                self.given.append(copied.requires_grad_(leaves[at].requires_grad))
            elif leaves[at].requires_grad:
                self.register_parameter(f"t{at}", nn.Parameter(copied))
            else:
                self.register_buffer(f"t{at}", copied)

    def forward(self, *given: Tensor) -> Any:
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, given or map(self._held, self.places), strict=True):
            leaves[at] = tensor
        args, kwargs = tree_unflatten(leaves, self.spec)
        return tree_map(self._scaled, self.op[0](*args, **kwargs))

    def _held(self, at: int) -> Any:
        return getattr(self, f"t{at}")

    def _scaled(self, made: Any) -> Any:
        return made * self.scale if isinstance(made, Tensor) and made.requires_grad else made


def step(module: nn.Module, given: Sequence[Tensor]) -> list[Tensor | None]:
    """The results and gradients of one step, of parameters and arguments."""
    held = [*module.parameters(), *given]
    for tensor in held:
        tensor.grad = None
    torch.manual_seed(3)
    made = [leaf for leaf in tree_leaves(module(*given)) if isinstance(leaf, Tensor)]
    outputs = [leaf for leaf in made if leaf.requires_grad]
    torch.autograd.backward(outputs, [torch.randn_like(leaf) for leaf in outputs])
    return [*(leaf.detach().clone() for leaf in made), *(tensor.grad for tensor in held)]


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


def near(eager: nn.Module, plan: remat_compile.Plan) -> tuple[str, str]:
    """The same in JAX: how far results and gradients are from eager's."""
    import jax
    import jax.numpy as jnp

    if any(c.token is not None for c in plan.program.graph.cnodes):
        return "skipped", "draws"

    def weights(shape: tuple[int, ...]) -> Any:
        return np.cos(np.arange(math.prod(shape), dtype=np.float64)).reshape(shape)

    def loss(outputs: Any) -> Any:
        leaves = [
            leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        return sum((leaf * weights(leaf.shape)).real.sum() for leaf in leaves)

    for parameter in eager.parameters():
        parameter.grad = None
    made = [leaf for leaf in tree_leaves(eager()) if isinstance(leaf, Tensor)]
    roots = [leaf for leaf in made if leaf.requires_grad]
    given = [torch.from_numpy(weights(tuple(leaf.shape))).to(leaf.dtype) for leaf in roots]
    torch.autograd.backward(roots, given)
    jitted = jax.jit(
        step := remat_compile.jax_step(plan, loss=loss), compiler_options=step.compiler_options
    )
    outputs, grads = jitted(step.params)
    grads_of = dict(eager.named_parameters())
    pairs: list[tuple[Tensor | None, Any]] = list(zip(made, jax.tree.leaves(outputs), strict=True))
    pairs += [(grads_of[name].grad, grad) for name, grad in grads.items()]
    for ours, theirs in ((np.asarray(b), a) for a, b in pairs if a is not None):
        plain = theirs.detach().resolve_conj().resolve_neg()
        wanted = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
        if ours.shape != wanted.shape:
            return "differs", f"{ours.shape} is no {wanted.shape}"
        if not np.allclose(ours, wanted, 1e-7, 1e-9, equal_nan=True):
            apart = np.nanmax(np.abs(ours - wanted) / np.maximum(np.abs(wanted), 1e-9))
            return "differs", f"by {apart:.1g} of a value"
    return "equal", ""


def verdict(
    op: Callable[..., Any],
    leaves: Sequence[Any],
    spec: TreeSpec,
    *,
    in_jax: bool = False,
    inputs: bool = False,
) -> tuple[str, str]:
    """A word and, in words, why: `equal`, `signs` (of zeros), `told`, a code, `skipped` where
    eager alone fails or is not repeatable, or one of `DEFECTS`."""
    try:
        eager = Sample(op, leaves, spec, inputs=inputs)
        wanted, again = (step(eager, eager.given) for _ in range(2))
    except Exception as error:  # whatever an operator refuses
        return "skipped", type(error).__name__
    if not all(alike(a, b, bits=True) for a, b in zip(wanted, again, strict=True)):
        return "skipped", "eager repeats nothing"
    signal.alarm(LIMIT_S)
    sample, options = Sample(op, leaves, spec, inputs=inputs), {"planner": RedoAll(), **QUIET}
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if in_jax:
                return near(eager, remat_compile.plan(sample, (), **options))
            found = step(
                remat_compile.compile(sample, tuple(sample.given), **options), sample.given
            )
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
    from torch.testing._internal import common_methods_invocations as theirs

    # Their operators that draw set a seed first; `step` does it here, outside of the forward.
    theirs.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    for info in theirs.op_db:
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
    inputs: Annotated[bool, typer.Option(help="Tensors are arguments.")] = False,
    backend: Annotated[str, typer.Option(help="torch or jax.")] = "torch",
    out: Annotated[Path | None, typer.Option("-o", help="Keeps the verdicts.")] = None,
) -> None:
    """Counts verdicts; prints all that are not `equal`."""
    torch.set_num_threads(1)
    if backend == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
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
            rows.append((name, *verdict(op, leaves, spec, in_jax=backend == "jax", inputs=inputs)))
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
