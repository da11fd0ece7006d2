"""Runs a situation on a model in eager and on the planned step of an equal model; prints one line.

Each file here is a script of its own. A line begins with the verdict: `OK`, `REFUSED code`,
`BOTH-RAISE`, `WARNED-DIFF`, or one of the defects `SILENT` and `CRASH`.
"""

import contextlib
import copy
import math
import os
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("REMAT_COMPILE_CACHE", "off")
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree

import remat_compile as rc
from remat_compile import FBError
from remat_compile.planners.kit import Task, checked, format_planner, order_without

torch.set_num_threads(1)


@dataclass(frozen=True)
class RedoAll:
    """Makes everything of the forward again before every use in the backward."""

    name: ClassVar[str] = "redo-all"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "a test"

    def __post_init__(self):
        checked(self)

    def plan(self, program, budget, *, time_limit_s=60.0, progress=None):
        task = Task.of(program, budget, format_planner(self))
        i = task.instance
        again = {c for c, p in enumerate(i.phase_C) if p == "fwd" and i.makable_C[c]}
        if len(i.phase_C) > 260:
            return task.answer(order_without(i, frozenset(again)))
        order = []
        for c in i.capture:
            if i.phase_C[c] == "bwd":
                need, todo = set(), list(i.reads_C[c])
                while todo:
                    w = i.writer_A[todo.pop()]
                    if w in again and w not in need:
                        need.add(w)
                        todo.extend(i.rereads_C[w])
                order.extend(sorted(need))
            order.append(c)
        return task.answer(order)


BUDGET = {"planner": RedoAll(), "time_limit_s": 8, "progress": False}
INTEGER = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def same(a, b):
    """True if both hold the same bits; any NaN equals any other."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return (a is None and b is None) or (type(a) is type(b) and (a == b or (a != a and b != b)))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.is_floating_point():
        i = INTEGER[a.element_size()]
        both_nan = torch.isnan(a) & torch.isnan(b)
        return bool(((a.contiguous().view(i) == b.contiguous().view(i)) | both_nan).all())
    return torch.equal(a, b)


def diff(a, b):
    """The largest relative difference of two tensors, or their shapes."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape):
        return " vs ".join(str(tuple(t.shape)) if isinstance(t, torch.Tensor) else str(t) for t in (a, b))
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.detach().to(wide), b.detach().to(wide)
    if not a.numel():
        return "empty"
    return f"rel {(a - b).abs().max().item() / max(a.abs().max().item(), 1e-30):.1e}"


class Rec(dict):
    """Tensors of a run, by name."""

    def put(self, k, v):
        self[k] = v.detach().clone() if isinstance(v, torch.Tensor) else v

    def model(self, tag, m, grads=True):
        for n, p in m.named_parameters():
            n = n.replace("_orig_mod.", "").removeprefix("module.")
            self.put(f"{tag}.param.{n}", p)
            if grads:
                self.put(f"{tag}.grad.{n}", p.grad)
        for n, b in m.named_buffers():
            self.put(f"{tag}.buf.{n.replace('_orig_mod.', '').removeprefix('module.')}", b)

    def out(self, tag, o):
        for i, t in enumerate(_pytree.tree_leaves(o)):
            if isinstance(t, torch.Tensor | int | float | None):
                self.put(f"{tag}.out{i}", t)


def first(o):
    while not isinstance(o, torch.Tensor):
        if getattr(o, "loss", None) is not None:
            o = o.loss
        else:
            o = next(iter(o.values())) if isinstance(o, dict) else o[0]
    return o


def std_loop(m, batches, rec, loss=None, opt=None):
    params = [p for p in m.parameters() if p.requires_grad]
    opt = opt(m) if opt else torch.optim.AdamW(params, lr=1e-2)
    for i, b in enumerate(batches):
        torch.manual_seed(1000 + i)
        opt.zero_grad()
        o = m(*b)
        value = loss(o) if loss else first(o).float().square().mean()
        value.backward()
        rec.out(f"{i}", o)
        rec.put(f"{i}.loss", value)
        rec.put(f"{i}.rng", torch.get_rng_state())
        rec.model(f"{i}", m)
        opt.step()
    rec.model("end", m, grads=False)


def recomputed(c):
    try:
        schedule = c.planned_step.schedule
    except AttributeError:
        return "no schedule"
    n = Counter(getattr(x, "cnode", None) for x in schedule.steps)
    n.pop(None, None)
    return f"{sum(v - 1 for v in n.values())} of {len(n)} again"


def text_of(e):
    return re.sub(r"\s+", " ", str(e))


def codes_of(e):
    return ",".join(dict.fromkeys(d.code for d in e.diagnostics))


def place_of(e):
    frame = traceback.extract_tb(e.__traceback__)[-1]
    return f"{text_of(e)[:400]} @{frame.filename.split('site-packages/')[-1]}:{frame.lineno}"


def case(name, make, batches, loop=None, loss=None, opt=None, compile_with=None, kw=None,
         ctx=contextlib.nullcontext, args=None, kwargs=None, tol=None, eager_note="", **_):
    """Trains `make()` in eager and planned over `batches`; `loop` records what is compared."""
    loop = loop or (lambda m, bs, rec: std_loop(m, bs, rec, loss=loss, opt=opt))
    began = time.time()

    def said(status, more=""):
        print(f"{status} | {Path(sys.argv[0]).stem}/{name} | {more} | {time.time() - began:.1f}s", flush=True)

    def fresh():
        torch.manual_seed(7)
        m = make()
        bs = copy.deepcopy(batches() if callable(batches) else batches)
        torch.manual_seed(11)
        return m, bs

    want, got, eager_error, step_error = Rec(), Rec(), None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m, bs = fresh()
        try:
            loop(m, bs, want)
        except Exception as e:
            eager_error = e
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        m, bs = fresh()
        kw = kw or {}
        options = {**BUDGET, **({"planner": "dtr"} if "activation_budget" in kw else {}), **kw}
        try:
            with ctx():
                if compile_with:
                    c = compile_with(m, bs, options)
                else:
                    c = rc.compile(m, args if args is not None else tuple(bs[0]), kwargs, **options)
        except FBError as e:
            also = f" [eager raises too: {type(eager_error).__name__}]" if eager_error else ""
            return said("REFUSED " + codes_of(e), text_of(e)[:600] + also)
        except Exception as e:
            return said(f"CRASH at compile {type(e).__name__}", place_of(e))
        torch.manual_seed(11)
        try:
            loop(c, bs, got)
        except Exception as e:
            step_error = e
    codes = ",".join(sorted({k for w in caught for k in re.findall(r"FB\d{4}", str(w.message))}))
    info = f"{len(want)} tensors, {recomputed(c)}, warned [{codes}] {eager_note}"
    if isinstance(step_error, FBError):
        also = f" [eager raises too: {text_of(eager_error)[:150]}]" if eager_error else ""
        return said("REFUSED-STEP " + codes_of(step_error), text_of(step_error)[:600] + also)
    if step_error is not None and eager_error is not None:
        return said("BOTH-RAISE", f"{text_of(eager_error)[:150]} // {text_of(step_error)[:150]}")
    if step_error is not None:
        return said(f"CRASH at step {type(step_error).__name__}", f"{place_of(step_error)} {info}")
    if eager_error is not None:
        return said("EAGER-RAISES-ONLY", f"{type(eager_error).__name__}: {text_of(eager_error)[:250]}; {info}")
    bad = [k for k in want if k not in got or not same(want[k], got[k])]
    bad += [k for k in got if k not in want]
    if not bad:
        return said("OK", info)
    if tol is not None and all(near(want.get(k), got.get(k), tol) for k in bad):
        return said("OK (rounding)", f"{len(bad)} differ by less than {tol}; {info}")
    k = bad[0]
    said("WARNED-DIFF" if codes else "SILENT",
         f"{len(bad)} of {len(want)} differ, first {k}: {diff(want.get(k), got.get(k))}; {info}")


def near(a, b, tol):
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return a.is_floating_point() and torch.allclose(a.double(), b.double(), rtol=tol, atol=tol)


B = 4


def data(n=4, b=B, d=16, seed=3):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(b, d, generator=g),) for _ in range(n)]
