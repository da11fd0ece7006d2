"""What may change after a model was compiled, and what must come then.

Each row is a block whose forward reads one thing (`read`, a factor of what it gives), which is then
changed. `comes` is what `compile` must do at the next step: "refused" (FB0910), "equal" (the values
of eager), "error" (as eager raises), a code (refused at compile), or "differs": a blind spot that
docs/reference/pytorch.md names. `remat` is the same for `torch.compile(backend="remat")`, where
TorchDynamo guards: "equal" unless it is said.
"""

from __future__ import annotations

from dataclasses import dataclass

WORLD = """
import collections, contextvars, copy, dataclasses, enum, functools, os, random, threading, types
import warnings
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CV = contextvars.ContextVar("cv", default=1.0)
TL = threading.local()
TL.v = 1.0
GNUM, GLIST, GEMPTY, GDICT, GTENSOR = 1.0, [1.0], [], {"k": 1.0}, torch.tensor(1.0)
GARR, STORE, KEPT = np.ones(1), {}, []
SPACE = types.SimpleNamespace(K=1.0)

def gfun(v): return v
def gdef(v=1.0): return v
def made(v=2.0): return lambda x: x * v
def cell():
    k = 1.0
    def put(v):
        nonlocal k
        k = v
    return lambda: k, put
GET, PUT = cell()

class Color(enum.Enum):
    RED, BLUE = 1, 2

class Sched:
    K = 1.0
    def __init__(s): s.t = 1
    def foo(s): return 1.0
    @property
    def value(s): return 1.0 / s.t
    def step(s): s.t += 1

class Cfg:
    def __init__(s, scale=1.0):
        s.scale, s.inner = scale, types.SimpleNamespace(k=1.0, tags=["a"])
    def factor(s): return s.scale

@dataclasses.dataclass
class DC:
    scale: float = 1.0

NT = collections.namedtuple("NT", "k l")

class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, t, a=(), k=None):
        with torch._C.DisableTorchFunctionSubclass(): r = f(*a, **(k or {}))
        return r * 3 if f is torch.nn.functional.linear else r

def counted(s):
    s.c += 1
    return float(s.c)
def counts(s):
    s.c += 1
    return 1.0
def keeps(s, x):
    s.c["h"] = x.detach().sum()
    return 1.0
def stores(x):
    STORE["h"] = x.detach() * 2
    return 1.0
def appends(s, x):
    s.c.append(x.detach().sum())
    return 1.0
def prints():
    print("", end="")
    return 1.0
def warned():
    warnings.warn("hello")
    return 1.0
def ones(*shape, **k): return torch.ones(*shape, **k)
def tied(s, other=None): s.b = nn.Linear(8, 4); s.b.weight = s.a.weight
def lossy(): return torch.autograd.graph.saved_tensors_hooks(
    lambda t: t.bfloat16(), lambda t: t.float())
def tripled(m, i, o): return o * 3
def tripled_input(m, i): return (i[0] * 3,)
def tripled_grads(m, gi, go): return tuple(None if g is None else g * 3 for g in gi)
def tripled_grad(m, go): return tuple(g * 3 for g in go)
def all_tripled(m, i, o): return o * 3 if isinstance(m, nn.Linear) else None

class Block(nn.Module):
    flag, level = False, 1.0
    @property
    def merged(s): return bool(s.c)
    def __init__(s):
        super().__init__()
        s.a = nn.Linear(8, 4)
        s.start()
    def forward(s, x, k=None): return (s.a(x) * s.read(x, k)).tanh()

class Top(nn.Sequential):
    def forward(s, x, k=None):
        x = s[0](x, k)
        for l in list(s)[1:]: x = l(x)
        return x
"""


@dataclass(frozen=True)
class Change:
    """`start` is run in the constructor of block `s`, `read` is an expression of `s`, `x` and `k`,
    `change` is run on block `b` in model `m`; `first` and `then` are the arguments of the two
    steps, `around` and `before` what is around the second and the first."""

    start: str
    read: str
    change: str
    comes: str = "refused"
    remat: str = "equal"
    first: str = "ones(6, 8)"
    then: str = ""
    around: str = ""
    before: str = ""


def _same(start: str, read: str, change: str) -> Change:
    return Change(start, read, change, "equal")


def _call(read: str, first: str, then: str, comes: str = "refused", remat: str = "equal") -> Change:
    return Change("", read, "", comes, remat, first, then)


CONTAINERS = {
    "a float": Change("s.c = 1.0", "s.c", "b.c = 3.0"),
    "an int": Change("s.c = 1", "s.c", "b.c = 3"),
    "1 -> True": Change("s.c = 1", "1.0 if s.c is True else 2.0", "b.c = True"),
    "0.0 -> -0.0": Change(
        "s.c = 0.0",
        "torch.full((), s.c).atan2(torch.tensor(-1.0))",
        "b.c = -0.0",
        "differs",
        "differs",
    ),
    "a flag": Change("s.c = False", "2.0 if s.c else 1.0", "b.c = True"),
    "a text": Change("s.c = 'a'", "2.0 if s.c == 'b' else 1.0", "b.c = 'b'"),
    "a list: replaced": Change("s.c = [1.0, 2.0]", "s.c[0]", "b.c[0] = 3.0"),
    "a list: appended": Change("s.c = [1.0]", "sum(s.c)", "b.c.append(3.0)"),
    "an empty list": Change("s.c = []", "2.0 if s.c else 1.0", "b.c.append(1)"),
    "a list by a property": Change("s.c = []", "2.0 if s.merged else 1.0", "b.c.append('d')"),
    "a dict: value": Change("s.c = {'z': 1.0}", "s.c['z']", "b.c.update(z=3.0)"),
    "a dict: get": Change("s.c = {'z': 2.0}", "s.c.get('w', 1.0)", "b.c.update(w=3.0)"),
    "an empty dict": Change("s.c = {}", "2.0 if 'w' in s.c else 1.0", "b.c.update(w=3.0)"),
    "a dict: order": Change(
        "s.c = {'a': 1.0, 'b': 2.0}", "list(s.c.values())[0]", "b.c['a'] = b.c.pop('a')"
    ),
    "a set": Change("s.c = {'v'}", "2.0 if 'w' in s.c else 1.0", "b.c.add('w')"),
    "an empty set": Change("s.c = set()", "2.0 if 'w' in s.c else 1.0", "b.c.add('w')"),
    "a deque": Change("s.c = collections.deque([1.0])", "sum(s.c)", "b.c.append(3.0)"),
    "a Counter": Change("s.c = collections.Counter()", "1.0 + s.c['w']", "b.c.update(['w'])"),
    "a tuple": Change("s.c = (1.0, 2.0)", "s.c[0]", "b.c = (3.0, 2.0)"),
    "nested": Change("s.c = [{'k': [1.0]}]", "s.c[0]['k'][0]", "b.c[0]['k'][0] = 3.0"),
    "in a named tuple": Change("s.c = NT(1.0, [1.0])", "s.c.l[0]", "b.c.l[0] = 3.0"),
    "an object in a list": Change("s.c = [Sched()]", "s.c[0].value", "b.c[0].step()"),
}

OBJECTS = {
    "a config": Change("s.c = Cfg()", "s.c.scale", "b.c.scale = 3.0"),
    "a config by its method": Change("s.c = Cfg()", "s.c.factor()", "b.c.scale = 3.0"),
    "an object in it": Change("s.c = Cfg()", "s.c.inner.k", "b.c.inner.k = 3.0"),
    "a config: hasattr": Change(
        "s.c = Cfg()", "2.0 if hasattr(s.c, 'late') else 1.0", "b.c.late = 1"
    ),
    "a config: getattr": Change("s.c = Cfg()", "getattr(s.c, 'late', 1.0)", "b.c.late = 3.0"),
    "another config": Change("s.c = Cfg()", "s.c.scale", "b.c = Cfg(3.0)"),
    "a dataclass": Change("s.c = DC()", "s.c.scale", "b.c.scale = 3.0"),
    "an Enum": Change("s.c = Color.RED", "2.0 if s.c is Color.BLUE else 1.0", "b.c = Color.BLUE"),
    "a function": Change("s.c = torch.relu", "s.c(x).sum()", "b.c = torch.tanh"),
    "a partial in place": Change(
        "s.c = functools.partial(gfun, v=2.0)", "s.c()", "b.c.keywords.update(v=3.0)"
    ),
    "another partial": Change(
        "s.c = functools.partial(gfun, v=2.0)", "s.c()", "b.c = functools.partial(gfun, v=3.0)"
    ),
    "a dtype": Change(
        "s.c = torch.float32", "torch.full((), 0.1, dtype=s.c).float()", "b.c = torch.bfloat16"
    ),
    "a computed name": Change("s.c = 1.0", "getattr(s, ''.join(['c']))", "b.c = 3.0"),
    "a late attribute": Change("", "getattr(s, 'late', 1.0)", "b.late = 3.0"),
    "an attribute of the class": Change("", "s.level", "type(b).level = 3.0"),
    "one shadowed": Change("", "2.0 if s.flag else 1.0", "b.flag = True"),
    "an attribute of a config's class": Change("s.c = Sched()", "s.c.K", "Sched.K = 3.0"),
    "a method of the module's class": Change(
        "",
        "len(s.extra_repr()) + 1.0",
        "type(b).extra_repr = lambda s: 'xx'",
        remat="differs",
    ),
    "a method of a config's class": Change(
        "s.c = Sched()", "s.c.foo()", "Sched.foo = lambda s: 3.0", remat="differs"
    ),
    "a method of a config": Change("s.c = Cfg()", "s.c.factor()", "b.c.factor = lambda: 3.0"),
}

OUTSIDE = {
    "a global number": Change("", "GNUM", "globals().update(GNUM=3.0)"),
    "a global list": Change("", "GLIST[0]", "GLIST[0] = 3.0"),
    "an empty global list": Change("", "2.0 if GEMPTY else 1.0", "GEMPTY.append(1)"),
    "a global dict": Change("", "GDICT['k']", "GDICT.update(k=3.0)"),
    "a global function": Change("", "gfun(1.0)", "globals().update(gfun=lambda v: 3 * v)"),
    "its code": Change("", "gfun(1.0)", "gfun.__code__ = (lambda v: 3 * v).__code__"),
    "its defaults": Change("", "gdef()", "gdef.__defaults__ = (3.0,)"),
    "a namespace": Change("", "SPACE.K", "SPACE.K = 3.0"),
    "a closure": Change("", "GET()", "PUT(3.0)"),
    "a ContextVar": Change("", "CV.get()", "CV.set(3.0)"),
    "a threading.local": Change("", "TL.v", "TL.v = 3.0"),
    "os.environ": Change(
        "", "float(os.environ.get('FAITH', '1'))", "os.environ['FAITH'] = '3'", remat="differs"
    ),
    "an array as a number": Change("s.c = np.ones(3)", "float(s.c[0])", "b.c[0] = 3.0"),
    "an array as a tensor": Change(
        "s.c = np.ones(4, 'f4')", "torch.from_numpy(s.c)", "b.c[0] = 3.0"
    ),
    "another array": Change("s.c = np.ones(3)", "float(s.c[0])", "b.c = np.full(3, 3.0)"),
    "a global array": Change("", "float(GARR[0])", "GARR[0] = 3.0"),
    "a number of NumPy": Change("s.c = np.float64(1.0)", "s.c", "b.c = np.float64(3.0)"),
}

MODULES = {
    "forward of a submodule": Change(
        "", "1.0", "b.a.forward = lambda x: F.linear(x, b.a.weight) * 3"
    ),
    "another submodule": Change("", "1.0", "b.a = nn.Linear(8, 4)", "equal"),
    "of another class": Change("s.n = nn.Tanh()", "s.n(x).sum()", "b.n = nn.Sigmoid()"),
    "an empty ModuleList": Change(
        "s.c = nn.ModuleList()",
        "1.0 + sum(q(ones(1, 1)).sum() for q in s.c)",
        "b.c.append(nn.Linear(1, 1))",
    ),
    "a ModuleDict": Change(
        "s.c = nn.ModuleDict()", "2.0 if 'w' in s.c else 1.0", "b.c['w'] = nn.Identity()"
    ),
    "a Sequential": Change("", "1.0", "m.append(nn.Tanh())"),
    "Dropout.p": Change("s.d = nn.Dropout(0.1)", "s.d(ones(4))", "b.d.p = 0.9"),
    "BatchNorm.eps": Change("s.d = nn.BatchNorm1d(8)", "s.d(x).square().sum()", "b.d.eps = 0.5"),
    "eval of a submodule": Change("s.d = nn.Dropout(0.5)", "s.d(ones(4))", "b.d.eval()"),
    "eval of all": Change("s.d = nn.Dropout(0.5)", "s.d(ones(4))", "m.eval()"),
    "a forward hook": Change("", "1.0", "b.a.register_forward_hook(tripled)"),
    "a forward pre-hook": Change("", "1.0", "b.a.register_forward_pre_hook(tripled_input)"),
    "a backward hook": Change("", "1.0", "b.a.register_full_backward_hook(tripled_grads)"),
    "a backward pre-hook": Change("", "1.0", "b.a.register_full_backward_pre_hook(tripled_grad)"),
    "a hook removed": Change("s.h = s.a.register_forward_hook(tripled)", "1.0", "b.h.remove()"),
    "a hook of all modules": Change(
        "",
        "1.0",
        "KEPT.append(nn.modules.module.register_module_forward_hook(all_tripled))",
        remat="refused",
    ),
    "a hook of the model": Change("", "1.0", "m.register_forward_hook(tripled)", "equal"),
    "a hook of a parameter": Change(
        "", "1.0", "b.a.weight.register_hook(lambda g: g * 3)", "equal"
    ),
    "a parametrization": Change(
        "",
        "1.0",
        "nn.utils.parametrizations.weight_norm(b.a); "
        "b.a.parametrizations.weight.original0.data.mul_(3)",
    ),
    "one removed": Change(
        "nn.utils.parametrizations.weight_norm(s.a)",
        "1.0",
        "nn.utils.parametrize.remove_parametrizations(b.a, 'weight'); b.a.weight.data.mul_(3)",
    ),
}

TENSORS = {
    "frozen": Change("", "1.0", "b.a.weight.requires_grad_(False)"),
    "trained": Change("s.a.weight.requires_grad_(False)", "1.0", "b.a.weight.requires_grad_(True)"),
    "data": Change("", "1.0", "b.a.weight.data = torch.full((4, 8), 0.1)", "equal"),
    "data of another shape": Change(
        "", "1.0", "b.a.weight.data = torch.full((4, 12), 0.1)", then="ones(6, 12)"
    ),
    "data that lies otherwise": Change(
        "", "1.0", "b.a.weight.data = b.a.weight.data.t().contiguous().t() * 3"
    ),
    "another Parameter": Change(
        "", "1.0", "b.a.weight = nn.Parameter(torch.full((4, 8), 0.1))", "equal"
    ),
    "double": Change("", "1.0", "m.double()", then="ones(6, 8, dtype=torch.float64)"),
    "a tie broken": Change(
        "tied(s)", "s.b(x)", "b.b.weight = nn.Parameter(b.a.weight.detach() * 2)"
    ),
    "a tie made": Change("s.b = nn.Linear(8, 4)", "s.b(x)", "b.b.weight = b.a.weight"),
    "a buffer from None": Change(
        "s.register_buffer('c', None)", "1.0 if s.c is None else s.c", "b.c = torch.tensor(3.0)"
    ),
    "a parameter from None": Change(
        "s.register_parameter('c', None)",
        "1.0 if s.c is None else s.c",
        "b.c = nn.Parameter(torch.tensor(3.0))",
    ),
    "a buffer in place": Change(
        "s.register_buffer('c', torch.tensor(1.0))", "s.c", "b.c.fill_(3.0)", "equal"
    ),
    "a buffer of another shape": Change(
        "s.register_buffer('c', torch.ones(4))", "s.c", "b.c = torch.full((1,), 3.0)"
    ),
    "a tensor's list": Change("s.c = torch.tensor([2.0])", "s.c.tolist()[0]", "b.c.fill_(3.0)"),
}

SETTINGS = {
    "default dtype": Change(
        "",
        "torch.full((), 0.1).double().sum().float()",
        "torch.set_default_dtype(torch.float64)",
        "error",
        "error",
    ),
    "deterministic algorithms": Change(
        "",
        "2.0 if torch.are_deterministic_algorithms_enabled() else 1.0",
        "torch.use_deterministic_algorithms(True)",
    ),
    "autocast on": Change("", "1.0", "", around="torch.autocast('cpu', torch.bfloat16)"),
    "autocast off": Change("", "1.0", "", before="torch.autocast('cpu', torch.bfloat16)"),
    "hooks on saved tensors": Change("", "1.0", "", "equal", around="lossy()"),
}

CALLS = {
    "another batch": _call("1.0", "ones(6, 8)", "ones(9, 8)"),
    "another rank": _call("1.0", "ones(6, 8)", "ones(2, 3, 8)"),
    "other strides": _call("2.0 if x.is_contiguous() else 1.0", "ones(6, 8)", "ones(8, 6).t()"),
    "another dtype": _call(
        "2.0 if k.dtype == torch.int64 else 1.0",
        "ones(6, 8), ones(2, dtype=torch.int32)",
        "ones(6, 8), ones(2, dtype=torch.int64)",
    ),
    "requires_grad": _call(
        "2.0 if x.requires_grad else 1.0", "ones(6, 8)", "ones(6, 8, requires_grad=True)"
    ),
    "another number": _call("k", "ones(6, 8), 1.0", "ones(6, 8), 3.0"),
    "another text": _call("1.0 if k == 'a' else 2.0", "ones(6, 8), 'a'", "ones(6, 8), 'b'"),
    "left out": _call("1.0 if k is None else k.sum()", "ones(6, 8), ones(3)", "ones(6, 8),"),
    "a subclass": _call("1.0", "ones(6, 8)", "ones(6, 8).as_subclass(Sub)", remat="uncompared"),
    "on meta": _call("1.0", "ones(6, 8)", "ones(6, 8, device='meta')", "error", "error"),
}

EFFECTS = {
    "random.random": Change("", "random.random()", "", "FB0513", "uncompared"),
    "np.random": Change("", "float(np.random.rand())", "", "FB0513", "uncompared"),
    "a count that counts": Change("s.c = 0", "counted(s)", "", "FB0513"),
    "a count": Change("s.c = 0", "counts(s)", "", "equal"),
    "kept in a dict": Change("s.c = {}", "keeps(s, x)", "", "equal"),
    "kept outside": Change("", "stores(x)", "", "equal"),
    "kept in a list": Change("s.c = []", "appends(s, x)", "", "equal"),
    "prints": Change("", "prints()", "", "equal"),
    "warns": Change("", "warned()", "", "equal"),
}

SAME = {
    "an equal config": _same("s.c = Cfg()", "s.c.scale", "b.c = copy.copy(b.c)"),
    "a deep copy": _same("s.c = Cfg()", "s.c.inner.k", "b.c = copy.deepcopy(b.c)"),
    "an equal dataclass": _same("s.c = DC()", "s.c.scale", "b.c = DC()"),
    "a function made again": _same("s.c = made()", "s.c(1.0)", "b.c = made()"),
    "an equal partial": _same(
        "s.c = functools.partial(gfun, v=2.0)", "s.c()", "b.c = functools.partial(gfun, v=2.0)"
    ),
    "an equal list": _same("s.c = [1.0]", "s.c[0]", "b.c = [1.0]"),
    "a list that nothing reads": _same("s.c = []", "1.0", "b.c.append(1)"),
    "an attribute that nothing reads": _same("s.c = 1", "1.0", "b.c = 2"),
    "a new attribute": _same("", "1.0", "b.note = 'x'"),
    "a key that nothing reads": _same("s.c = {'z': 1.0}", "s.c['z']", "b.c.update(other=5.0)"),
    "an attribute of a config": _same("s.c = Cfg()", "s.c.scale", "b.c.note = 'x'"),
    "a new global": _same("", "1.0", "globals().update(GNEW=1)"),
    "an equal array": _same("s.c = np.ones(3)", "float(s.c[0])", "b.c = np.ones(3)"),
    "load_state_dict": _same(
        "", "1.0", "m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()})"
    ),
    "assign=True": _same(
        "",
        "1.0",
        "m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True)",
    ),
    "eval and train": _same("", "1.0", "m.eval(); m.train()"),
    "a hook and back": _same("", "1.0", "b.a.register_forward_hook(tripled).remove()"),
    "an optimizer's step": _same("", "1.0", "[p.data.mul_(0.5) for p in m.parameters()]"),
}

KINDS = {
    "module": CONTAINERS,
    "object": OBJECTS,
    "outside": OUTSIDE,
    "tree": MODULES,
    "tensor": TENSORS,
    "setting": SETTINGS,
    "call": CALLS,
    "effect": EFFECTS,
    "no change": SAME,
}
CHANGES = {f"{kind}: {name}": row for kind, rows in KINDS.items() for name, row in rows.items()}
