"""Export: a live module or a `.pt2` file as an exported module that can be traced."""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import sympy
import torch
from torch import Tensor, nn
from torch._guards import TracingContext, tracing
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.parameter import is_lazy
from torch.utils._pytree import (
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)

from ...device.fake_tensors import FakeTensorMode
from ...ir.diagnostics import Diagnostic, fail
from ..guards.call_guards import CallGuards, LocalNames, guards_of_call
from ..lowered import Exported
from ..output_spec import ALL_RESULTS, Wanted
from ..trace.autocast import Autocast
from ..trace.kernel_strides import laid_out_by_kernels
from ..trace.lock import capturing, exchanging, unlogged
from ..trace.module import StandIn, as_forward_sees, has_values, unalias, unchanged
from ..trace.outputs import Results, read_results, without_cache
from ..trace.parallel import check_not_spread, replica_of
from .graph.prepare import check_dense
from .observe import CALL_ONCE, observe
from .places import place_of, refused
from .without_values import device_away, file_on_device, on_device

NO_NUMBERS = "compute with the tensor (torch.where), not with the number in it (`.item()`)"
SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool


def export(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    wanted: Wanted = ALL_RESULTS,
    guarded: bool = False,
) -> Exported:
    """Captures `module` at the sample `(args, kwargs)`; of a drop-in, the model that it stands for.

    Only sizes that are dynamic and `strict` need `torch.export`; else `lower` traces the model.
    `dynamic_shapes` and `strict` are those of `torch.export.export`; only with `strict` do
    the policies of `torch.utils.checkpoint` reach the joint graph. `wanted` says which results
    are kept and differentiated. With `guarded` the guards of a planned step are
    captured as well. Raises FBError FB0501 when the model cannot be exported, FB0502
    when nothing in it can be trained, FB0513 for Python state that capture would freeze, and
    FB0507 and FB0517 for results that cannot be had.
    """
    kwargs = dict(kwargs or {})
    given, module = module, replica_of(module)
    check_not_spread(module)
    if isinstance(module, StandIn):
        module = module._remat_compile_original()
    _check_trainable(module)
    _check_kinds(module, args, kwargs)
    args, kwargs = unalias(args, kwargs)
    away = None
    if not has_values(module):
        module, args, kwargs = on_device(module, args, kwargs, torch.device("cpu"))
    else:
        away = device_away(module, args, kwargs)
    if away is not None and dynamic_shapes is not None:
        message = "sizes are dynamic, and parameters do not lie where the step runs"
        fail("FB0555", message, hint="leave out dynamic_shapes=, or move the model")
    with exchanging(), _quiet(), unchanged(module):
        args, kwargs = as_forward_sees(module, args, kwargs)
    own, sample = module, (args, kwargs)
    if away is not None:
        module, args, kwargs = on_device(module, args, kwargs, away)
    guards = None
    what = f"PyTorch cannot capture the forward of {type(module).__name__}"
    with refused("FB0501", what, module, args, kwargs):
        with exchanging(), _quiet(), unchanged(module):
            seen = observe(module, args, kwargs, wanted)
        if away is not None:
            why = "its parameters do not lie where the step runs"
            guards = CallGuards(LocalNames(own), None, seen.changing, why)
        elif guarded:
            with capturing(), _quiet(), unchanged(module):
                guards = guards_of_call(module, args, kwargs, seen.changing)
        results = None if strict else seen.results
        program = None
        if strict or dynamic_shapes is not None:
            with exchanging(), _quiet(), unchanged(module), _laid_out(module):
                if not strict:
                    _return_what_can_be_exported(module, results)
                try:
                    program = torch.export.export(
                        module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict
                    )
                except _ForwardError as held:
                    raise held.error from None
    made = replace(
        _exported(program, module, args, kwargs),
        has_checkpoints=strict,
        is_live=True,
        warnings=(*seen.warnings, *(guards.warnings() if guards is not None else ())),
        changing=seen.changing,
        guards=guards,
        results=results,
        given=given,
    )
    if away is None:
        return made
    own_args, own_kwargs = sample
    flat = tuple(tree_leaves(sample))
    home = replace(made, original=own, module=own, args=own_args, kwargs=own_kwargs, flat_args=flat)
    return replace(made, home=replace(home, is_away=True))


class _ForwardError(Exception):
    """An `error` of a forward on its way through `torch.export`, which prints the graph behind some
    (our message says why)."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error


def _return_what_can_be_exported(module: nn.Module, results: Results | None) -> None:
    """Lets the forward return tensors that `torch.export` takes, where its results are known, and
    no hook of `module` run."""
    inner = module.forward

    @wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        try:
            with without_cache(module) if results else nullcontext():
                made = inner(*args, **kwargs)
        except Exception as error:  # whatever the model's Python raises
            raise _ForwardError(error) from None
        if results is None or results.is_plain:
            return made
        # As if it were compiled, a forward may return something else than in eager.
        form = results if results.is_form_of(made) else read_results(made)
        return form.tensors(made)

    hooks = [key for key in vars(module) if results and key.endswith("_hooks")]
    vars(module).update({key: OrderedDict() for key in hooks}, forward=forward)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's warnings to people who write compilers."""
    with warnings.catch_warnings(), unlogged(logging.WARNING):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _laid_out(module: nn.Module) -> Iterator[None]:
    """Inside, `torch.export` traces tensors as real kernels lay them out."""
    sizes = ShapeEnv(tracked_fakes=[], trace_asserts=True)
    mode = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True, export=True)
    with tracing(TracingContext(mode)), laid_out_by_kernels(mode, has_values=has_values(module)):
        yield


def load_pt2(path: str | Path) -> Exported:
    """An exported program saved by `torch.export.save`, with its example inputs.

    FBError FB0503 and FB0504 for what is no such file; the warning FB0522 for one made on `meta`.
    """
    try:
        program = torch.export.load(str(path))
    except Exception as error:  # a zip, pickle or schema error of torch.export.load
        fail(
            "FB0503",
            f"{path} is not a readable .pt2 file: {_first_line(error)}",
            hint="write it with torch.export.save(torch.export.export(model, args), path)",
        )
    if program.example_inputs is None:
        fail("FB0504", f"{path} holds no example inputs", hint="export it again")
    module = program.module(check_guards=False)
    ties: tuple[Diagnostic, ...] = ()
    if not has_values(module):
        program, ties = file_on_device(program, torch.device("cpu")), _lost_ties(path, module)
        module = program.module(check_guards=False)
    assert program.example_inputs is not None
    args, kwargs = program.example_inputs
    _check_trainable(module)
    return replace(_exported(program, module, tuple(args), dict(kwargs)), warnings=ties)


def _lost_ties(path: str | Path, module: nn.Module) -> tuple[Diagnostic, ...]:
    """FB0522 where two parameters could have been one: a file made on `meta` does not say."""
    names: dict[tuple[Any, ...], list[str]] = {}
    for name, p in module.named_parameters():
        names.setdefault((tuple(p.shape), p.dtype), []).append(name)
    alike = [same for same in names.values() if len(same) > 1]
    if not alike:
        return ()
    pair = " and ".join(alike[0][:2])
    message = (
        f"{path} was exported on the meta device, where a file keeps no ties of tensors: all "
        f"parameters, {pair} for instance, are planned as separate ones"
    )
    hint = "where some are tied, plan the module itself, on meta, or export it on a device"
    return (Diagnostic("FB0522", message, hint=hint),)


def _exported(
    program: ExportedProgram | None,
    original: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Exported:
    module = original if program is None else program.module(check_guards=False)
    flat, spec = tree_flatten((args, kwargs))
    names, ranges = ({}, {}) if program is None else _symbols(program)
    trace_args, trace_kwargs = args, kwargs
    if program is not None and ranges:
        trace_args, trace_kwargs = _fake_inputs(program, flat, spec)
    tensors = [t for t in (*flat, *module.parameters()) if isinstance(t, Tensor)]
    device = tensors[0].device
    return Exported(
        original=original,
        module=module,
        args=args,
        kwargs=kwargs,
        flat_args=tuple(flat),
        in_spec=spec,
        trace_args=trace_args,
        trace_kwargs=trace_kwargs,
        symbol_names=names,
        symbol_ranges=ranges,
        device=device,
        autocast=Autocast.now(device.type),
    )


def _check_trainable(module: nn.Module) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        fail(
            "FB0502",
            f"{type(module).__name__} has no trainable parameter",
            hint="set requires_grad on the parameters to be trained",
        )


def _check_kinds(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """FB0513 for parameters that the first call makes, FB0507 for TorchScript and FB0902 for
    tensors that are not dense."""
    for path, part in module.named_modules():
        name = f"{path or 'the model'} ({type(part).__name__})"
        if isinstance(part, torch.jit.ScriptModule):
            message = f"{name} is TorchScript, which runs other operators from call to call"
            fail("FB0507", message, hint="put the module that it was made from in its place")
        if any(map(is_lazy, (*part._parameters.values(), *part._buffers.values()))):
            message = f"{name} makes its parameters on its first call"
            fail("FB0513", message, hint=CALL_ONCE)
    given = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
    named = zip(argument_paths(args, kwargs), given, strict=True)
    check_dense((*module.named_parameters(), *module.named_buffers(), *named))


def argument_paths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """`args[0]`, `kwargs['mask']`, … of every tensor leaf, in flat order."""
    leaves, _ = tree_flatten_with_path((args, kwargs))
    roots = ("args", "kwargs")
    return [
        roots[_index(path[0])] + keystr(path[1:])
        for path, leaf in leaves
        if isinstance(leaf, Tensor)
    ]


def _index(key: Any) -> int:
    return int(key.idx)


def _symbols(program: ExportedProgram) -> tuple[dict[str, str], dict[str, tuple[int, int]]]:
    """Names and ranges of the dynamic dimensions, keyed by PyTorch's symbol."""
    names: dict[str, str] = {}
    ranges: dict[str, tuple[int, int]] = {}
    free: set[Any] = set()
    for fake in _fake_values(program):
        sizes: tuple[Any, ...] = tuple(fake.shape)
        for size in sizes:
            free |= size.node.expr.free_symbols if isinstance(size, torch.SymInt) else set()
    for size in program.range_constraints:
        if not size.is_Symbol:
            fail(
                "FB0506",
                f"a dynamic dimension is {size}, which is worked out from another one",
                hint="give it a torch.export.Dim of its own, or export without it",
            )
    if any(symbol not in free for symbol in program.range_constraints):
        _refuse_data_dependent(program, free)
    symbols = sorted(free & set(program.range_constraints), key=str)
    for index, symbol in enumerate(symbols):
        bounds = program.range_constraints[symbol]
        low, high = int(bounds.lower), bounds.upper
        if not isinstance(high, int | sympy.Integer) or high >= 2**31:
            fail(
                "FB0505",
                f"dynamic dimension {symbol} has no upper bound",
                hint='give one: torch.export.Dim("batch", min=1, max=64)',
            )
        names[str(symbol)] = f"s{index}"
        ranges[str(symbol)] = (low, int(high))
    return names, ranges


def _refuse_data_dependent(program: ExportedProgram, known: set[Any]) -> NoReturn:
    """FB0506 with the first operation whose result has a size, or is a number, that depends on
    data."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        is_tensor = isinstance(value, Tensor)
        numbers = [n for n in (value.shape if is_tensor else (value,)) if isinstance(n, SYMBOLIC)]
        if any(number.node.expr.free_symbols - known for number in numbers):
            message = f"the size of what {node.target} returns" if is_tensor else f"{node.target}"
            where = f" ({place})" if (place := place_of(node)) is not None else ""
            hint = "use a form of fixed size, such as torch.where" if is_tensor else NO_NUMBERS
            fail("FB0506", f"{message} depends on data{where}", hint=hint)
    # Nothing in the graph reads what was asked for.
    fail("FB0506", "the forward asks for a number that depends on data", hint=NO_NUMBERS)


def _fake_inputs(
    program: ExportedProgram, flat: list[Any], spec: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The sample with every tensor leaf replaced by the export's symbolic fake value."""
    tensors = iter(_fake_values(program))
    leaves = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in flat]
    for leaf, fake in zip(flat, leaves, strict=True):
        if isinstance(leaf, Tensor):
            fake.requires_grad_(leaf.requires_grad)
    return tree_unflatten(leaves, spec)  # type: ignore[no-any-return]


def _fake_values(program: ExportedProgram) -> list[Tensor]:
    """The fake values of the tensor arguments, in flat order."""
    user_inputs = set(program.graph_signature.user_inputs)
    values = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in user_inputs
    ]
    return [value for value in values if isinstance(value, Tensor)]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
