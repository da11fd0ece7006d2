"""A lowered graph is executed once against eager autograd before it is trusted."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...device.devices import forked_generators
from ...ir.analysis.order import capture_order, frees_after_last_use
from ...ir.diagnostics import Diagnostic, FBError, listed, render
from ...ir.graph import CNode, Graph
from ...ir.program import Program
from ...ir.schedule import Compute, Step
from ...operators.executor import Again, execute
from ...operators.repeats import differences, same_bits
from ..lowered import Exported, Lowered
from ..trace.autocast import Autocast
from ..trace.module import unchanged
from ..trace.outputs import asks_for_cache
from ..trace.places import first_place, paths_of
from .fetched import fetched, fetching
from .graph.operators import is_compared
from .observe import CALL_ONCE
from .places import BY_REGIONS, CHECKPOINT, refused

RANDOM_STATE = "state of the random numbers"
_SEEDS = (
    "the forward sets the state of PyTorch's random numbers, which a plan does not",
    "draw that noise outside of the forward, and give it as an argument or a buffer",
)
_TWICE = (
    "the forward checkpoints a part that writes to a buffer (BatchNorm), in eager twice",
    CHECKPOINT,
)
_CAUSES = {inspect.unwrap(f).__code__: _SEEDS for f in (torch.manual_seed, torch.set_rng_state)}
_CAUSES[inspect.unwrap(checkpoint).__code__] = _TWICE

_TRUSTED: WeakSet[Exported] = WeakSet()
"""Captures that were compared."""


REPORT = f"{BY_REGIONS}; please report it with the model: no plan is made from a wrong graph"
AS_TRACED = (
    "the model goes another way while it is traced (torch.compiler.is_compiling), where kernels "
    "round otherwise: take a way that is the same in both, in transformers "
    f'attn_implementation="eager", or {BY_REGIONS}'
)
"""Where the captured graph is not the way of eager."""


def ensure_trusted(lowered: Lowered) -> None:
    """Checks the graph of an exported model against eager, once. FB0512 as below.

    Call it outside the `with` block of `lower`.
    """
    exported = lowered.exported
    if exported not in _TRUSTED:
        compiling = getattr(lowered.joint, "compiling", False)
        hint = AS_TRACED if compiling else REPORT
        check_against_eager(exported, lowered.program, lowered.values(), hint)
        _TRUSTED.add(exported)


def check_against_eager(
    exported: Exported, program: Program, values: Mapping[str, Tensor], hint: str = REPORT
) -> None:
    """Runs the graph and the model itself once each, on equal random states.

    Results, gradients and the contents of all buffers must be bit-equal, unless eager or the
    graph is not reproducible there itself and both are near each other (attention of cuDNN adds in
    any order: the warning FB0919); and so must be what a replay form computes from what its cNode
    has read, to what that has written. Nothing of the model changes. Raises FBError FB0512
    with everything that differs.
    """
    replayed: list[Diagnostic] = []

    def compare(c: CNode, name: str, kept: Tensor, again: Tensor) -> None:
        if not same_bits(kept, again):
            replayed.append(_wrong_replay(c, name))

    theirs = eager_step(exported, program)
    for b in program.binding.buffers:
        after = theirs.get(f"buffer {b.names[0]}")
        if after is not None and after.shape != values[b.name].shape:
            message = f"the first call of the model gives buffer {b.names[0]} another shape"
            raise FBError(Diagnostic("FB0513", message, hint=CALL_ONCE))
    with refused("FB0512", "the captured graph does not run", exported.original):
        ours = _of_graph(program, values, compare, is_away=exported.is_away)
    if replayed:
        raise FBError(replayed)
    compared = differences(
        {name: ours.get(name) for name in theirs},
        theirs,
        lambda: _of_graph(program, values, lambda *_: None, is_away=exported.is_away),
        lambda: eager_step(exported, program),
    )
    different = compared.real
    if compared.changing and not different:
        _warn_of(compared.changing)
    recurrent = [
        path
        for path, module in exported.original.named_modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase)
    ]
    if different and recurrent:
        message = (
            f"{listed(recurrent)}: eager computes its gates in place on slices of one "
            "tensor, and a plan, which has none of that, rounds otherwise"
        )
        raise FBError(Diagnostic("FB0520", message, hint="use nn.LSTM or nn.RNN in its place"))
    if different:
        message = f"the lowered graph computes another {listed(different)} than eager PyTorch"
        known: list[Diagnostic] = []
        if RANDOM_STATE in different or all(d.startswith("buffer ") for d in different):
            cause = _SEEDS if RANDOM_STATE in different else _TWICE
            known = _with_cause(exported, program, cause)
        raise FBError(known or Diagnostic("FB0512", message, hint=hint))


def _with_cause(exported: Exported, program: Program, cause: tuple[str, str]) -> list[Diagnostic]:
    """FB0512 with the first line of the model that calls a function of that `cause`."""
    place = first_place(
        lambda: eager_step(exported, program),
        paths_of(exported.original),
        lambda frame, event, _: event == "call" and _CAUSES.get(frame.f_code) is cause,
    )
    return [Diagnostic("FB0512", f"{cause[0]} ({place})", hint=cause[1])] if place else []


def _wrong_replay(c: CNode, name: str) -> Diagnostic:
    assert c.replay is not None
    message = f"{c.name}: {c.replay.call.op}, run in place of {c.call.op}, gives another %{name}"
    return Diagnostic("FB0512", message, c.span, hint=REPORT)


def _with_replays(graph: Graph, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, each cNode with a replay form of its own run a second time at once."""
    for step in steps:
        yield step
        if isinstance(step, Compute) and is_compared(graph.cnode[step.cnode]):
            yield step


def _warn_of(changing: Sequence[str]) -> None:
    message = (
        f"{listed(changing)} change from run to run here, in eager too or in the "
        "same kernels: their bits cannot be compared"
    )
    hint = (
        "torch.use_deterministic_algorithms(True), and on CUDA "
        "torch.backends.cuda.enable_cudnn_sdp(False), before the model is captured"
    )
    warnings.warn(render(Diagnostic("FB0919", message, hint=hint), level="warning"), stacklevel=4)


def _of_graph(
    program: Program, values: Mapping[str, Tensor], again: Again, *, is_away: bool
) -> dict[str, Tensor | None]:
    graph, binding = program.graph, program.binding
    buffers = {b.name: values[b.name].clone() for b in binding.buffers if b.update is not None}
    steps = _with_replays(graph, frees_after_last_use(graph, capture_order(graph)))
    if is_away:
        steps = fetched(program, steps)
    with forked_generators():
        done = execute(program, steps, {**values, **buffers}, again=again)
        state = torch.get_rng_state()
    outputs: dict[str, Tensor | None] = {
        f"result {index}": result for index, result in enumerate(done.results)
    }
    for p in binding.params:
        outputs[f"gradient of {p.names[0]}"] = done.param_grads.get(p.name)
    for index, gradient in done.input_grads.items():
        outputs[f"gradient of {binding.arguments[index].path}"] = gradient
    for b in binding.buffers:
        if b.update is not None:
            outputs[f"buffer {b.names[0]}"] = buffers[b.name]
    outputs[RANDOM_STATE] = state
    return outputs


def eager_step(exported: Exported, program: Program) -> dict[str, Tensor | None]:
    """Results, gradients and new buffers of the model itself, run once with ones as tangents."""
    binding, module = program.binding, exported.original
    off = Autocast(exported.device.type).around()
    with (
        unchanged(module),
        forked_generators(),
        torch.enable_grad(),
        off,
        fetching(exported) as leaves,
    ):
        before = _with_cloned_buffers(module)
        # Hooks of the model itself run around a step, and `exported.args` are behind them.
        call = module.forward if exported.is_live else module
        with exported.autocast.around():
            made = call(*exported.args, **exported.kwargs)
            _check_form(exported, made)
            results = exported.tensors(made)
        after = dict(module.named_buffers(remove_duplicate=False))
        targets: dict[str, Tensor] = {}
        for p in binding.params:
            if p.grad is not None:
                parameter = module.get_parameter(p.names[0])
                target = leaves.get(id(parameter), parameter)
                targets[f"gradient of {p.names[0]}"] = target
        tensors = [leaf for leaf in exported.flat_args if isinstance(leaf, Tensor)]
        for index, _ in binding.input_grads:
            targets[f"gradient of {binding.arguments[index].path}"] = tensors[index]
        trained = _with_tangents(results, program)
        with _without_hooks(targets.values()):
            gradients = torch.autograd.grad(
                trained,
                list(targets.values()),
                [torch.ones_like(result) for result in trained],
                allow_unused=True,
            )
        state = torch.get_rng_state()
    outputs: dict[str, Tensor | None] = {
        f"result {index}": result.detach() for index, result in enumerate(results)
    }
    outputs[RANDOM_STATE] = state
    outputs.update(zip(targets, gradients, strict=True))
    updated = {name for b in binding.buffers if b.update is not None for name in b.names[:1]}
    for name, buffer in after.items():
        if name in updated or not same_bits(buffer, before.get(name)):
            outputs[f"buffer {name}"] = buffer.detach()
    return outputs


@contextmanager
def _without_hooks(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Inside, the gradients of these tensors are as they arrive: what `register_hook` put on them
    does not run. (Behind a step it runs as behind eager, on the gradient that the step gives.)"""
    dicts = {id(t): t._backward_hooks for t in tensors if t._backward_hooks}
    held = [(hooks, dict(hooks)) for hooks in dicts.values()]
    for hooks, _ in held:
        hooks.clear()  # autograd reads this very dictionary
    try:
        yield
    finally:
        for hooks, then in held:
            hooks.update(then)


def _check_form(exported: Exported, made: object) -> None:
    """FB0512 where eager returns tensors at other places than the way that was traced."""
    returns = exported.returns
    # What a cache is made of, eager returns as well.
    if returns is None or asks_for_cache(exported.original) or returns.is_form_of(made):
        return
    message = "eager returns tensors at other places than the graph that was captured"
    raise FBError(Diagnostic("FB0512", message, hint=AS_TRACED))


def _with_cloned_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Puts a copy in the place of each buffer, ties kept. Returns what they hold, by name."""
    copies: dict[int, Tensor] = {}
    for part in module.modules():
        for key, buffer in part._buffers.items():
            if buffer is not None:
                copies.setdefault(id(buffer), buffer.detach().clone())
                part._buffers[key] = copies[id(buffer)]
    named = module.named_buffers(remove_duplicate=False)
    return {name: buffer.clone() for name, buffer in named}


def _with_tangents(results: list[Tensor], program: Program) -> list[Tensor]:
    """The eager tensors to which the graph's tangents belong.

    Results that alias an activation have one tangent together, that of their base: a
    result of its own, or one that AOTAutograd adds behind the model's.
    """
    bound = program.binding.results
    trained = [result for result, at in zip(results, bound, strict=False) if at.tangent is not None]
    bases = {id(r._base): r._base for r in results if r._base is not None and r.requires_grad}
    if len(bound) > len(results):
        trained += [base for base in bases.values() if base is not None]
    return trained
