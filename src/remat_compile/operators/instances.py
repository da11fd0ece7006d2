"""Instances of aNodes on real tensors, and one execution of one cNode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..device.devices import get_rng_state, set_rng_state
from ..ir.diagnostics import fail
from ..ir.graph import Call, CNode, Graph, View
from .aten import METHODS, to_torch
from .callable import callable_op, check_call


class Instances(Mapping[str, Tensor]):
    """The current instance of each aNode, and of views on demand, by name."""

    def __init__(self, graph: Graph, env: Mapping[str, int], values: Mapping[str, Tensor]):
        self._graph = graph
        self.env = env
        self._live: dict[str, Tensor] = {name: value.detach() for name, value in values.items()}
        self._derived: dict[str, Tensor] = {}
        self._views_of: dict[str, list[str]] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._live:
            return self._live[name]
        for view in self._graph.views_below(name, self._derived):
            self._derived[view.name] = self._derive(view)
            self._views_of.setdefault(view.base, []).append(view.name)
        return self._derived[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, name: object) -> bool:
        return name in self._live

    def put(self, name: str, tensor: Tensor) -> None:
        """A new instance of an aNode; views of an older one are forgotten."""
        self.drop(name)
        self._live[name] = tensor

    def drop(self, name: str) -> None:
        """Ends the current instance, if there is one, and its views."""
        self._live.pop(name, None)
        for view in self._views_of.pop(name, ()):
            del self._derived[view]

    def deriving(self, view: View) -> Callable[[], Any]:
        """The call of a view as generated code makes it, with its arguments at hand."""
        args = to_torch(view.call.args, self.env, self)
        kwargs = {key: to_torch(value, self.env, self) for key, value in view.call.kwargs}
        check_call(view.call)
        method = METHODS.get(view.call.op)
        if method is not None and not kwargs and isinstance(args[0], Tensor):
            return partial(getattr(args[0], method), *args[1:])
        return partial(callable_op(view.call.op)._op, *args, **kwargs)

    def _derive(self, view: View) -> Tensor:
        """FB0904 where it is no view: a kernel may give a result other strides than its shapes on
        `meta` say, and what was captured as a view is a copy in eager then."""
        try:
            derived = self.deriving(view)()
        except RuntimeError as error:
            fail(
                "FB0904",
                f"%{view.name} is declared a view of %{view.base}, which does not lie in memory "
                f"so that {view.call.op} can be one: {str(error).partition(chr(10))[0]}",
                view.span,
                hint="call contiguous() in the model before it is viewed",
            )
        if view.index is not None:
            derived = derived[view.index]
        if _storage_key(derived) != _storage_key(self[view.base]):
            fail(
                "FB0904",
                f"%{view.name} is declared a view of %{view.base}, but "
                f"{view.call.op} gave it a storage of its own",
                view.span,
                hint="declare it as the result of a cNode",
            )
        tensor: Tensor = derived
        return tensor


def _storage_key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


@contextmanager
def plain_mode(device: torch.device) -> Iterator[None]:
    """Runs kernels only: no autograd, no autocast, no dispatch mode and no Python
    dispatcher (a capture that is still open has both; the latter makes each operator
    milliseconds slower)."""
    kind = "cpu" if device.type == "meta" else device.type  # autocast knows no meta
    with (
        _disable_current_modes(),
        torch._C._DisablePythonDispatcher(),
        torch.no_grad(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C.DisableTorchFunction(),
        torch.autocast(kind, enabled=False),
    ):
        yield


def run_cnode(
    c: CNode, execution: int, instances: Instances, *, token: Tensor | None, device: torch.device
) -> tuple[Tensor | None, ...]:
    """The results of the n-th execution (from 1), one per write of the call or replay form.

    `token` is the generator state to replay from, on an execution after the first; the
    state at entry is restored. Raises FBError FB0904 where the operator does not return
    fresh storages as declared.
    """
    call = c.call_at(execution)
    writes = c.writes if execution == 1 or c.replay is None else c.replay.writes
    if c.is_accumulate:
        into, part = (instances[ref] for ref in call.refs())
        return (into.add_(part),)
    output = prepared(c, execution, instances, token=token, device=device)()
    results = tuple(output) if isinstance(output, tuple | list) else (output,)
    _check_results(c, call, writes, results, instances)
    return tuple(
        result if name is not None else None for name, result in zip(writes, results, strict=True)
    )


def prepared(
    c: CNode, execution: int, instances: Instances, *, token: Tensor | None, device: torch.device
) -> Callable[[], Any]:
    """The call as generated code makes it, with its arguments at hand: running it costs what the
    operator and its dispatch cost."""
    call = c.call_at(execution)
    if call.region:
        return partial(run_region, call, c.results, instances)
    op = callable_op(call.op)._op
    check_call(call)
    args = to_torch(call.args, instances.env, instances)
    kwargs = {key: to_torch(value, instances.env, instances) for key, value in call.kwargs}
    if token is None:
        return partial(op, *args, **kwargs)

    def replayed() -> Any:
        with _from_state(token, device):
            return op(*args, **kwargs)

    return replayed


def run_region(call: Call, results: Sequence[str], instances: Instances) -> tuple[Tensor, ...]:
    """The calls of a region one after the other; each value ends where it is read last."""
    values = {name: instances[name] for name in call.refs()}
    last = {n: i for i, inner in enumerate(call.region) for n in inner.call.refs()}
    for index, inner in enumerate(call.region):
        check_call(inner.call)
        args = to_torch(inner.call.args, instances.env, values)
        kwargs = {key: to_torch(v, instances.env, values) for key, v in inner.call.kwargs}
        made = callable_op(inner.call.op)(*args, **kwargs)
        del args, kwargs
        if inner.index is not None:
            made = (made[inner.index],)
        several = made if isinstance(made, tuple | list) else (made,)
        values.update({n: m for n, m in zip(inner.writes, several, strict=True) if n is not None})
        for name in inner.call.refs():
            if last[name] == index and name not in results:
                del values[name]
        del made, several
    return tuple(values[name] for name in results)


@contextmanager
def _from_state(token: Tensor, device: torch.device) -> Iterator[None]:
    current = get_rng_state(device)
    set_rng_state(token, device)
    try:
        yield
    finally:
        set_rng_state(current, device)


def _check_results(
    c: CNode,
    call: Call,
    writes: Sequence[str | None],
    results: Sequence[Tensor | None],
    instances: Instances,
) -> None:
    problem = None
    if len(writes) != len(results):
        problem = f"returned {len(results)} results for {len(writes)} declared ones"
    seen = {_storage_key(instances[name]): name for name in call.refs()}
    for name, result in zip(writes, results, strict=False):
        if name is None:
            continue
        if not isinstance(result, Tensor):
            problem = f"returned no tensor for %{name}"
        elif (other := seen.setdefault(_storage_key(result), name)) != name:
            problem = f"returned %{name} in the storage of %{other}"
    if problem is not None:
        fail(
            "FB0904",
            f"{c.name}: {call.op} {problem}",
            c.span,
            hint="declare what shares a storage as a view of it",
        )
