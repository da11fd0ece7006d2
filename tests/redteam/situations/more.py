from _harness import *  # noqa

SRC = "ctc by lists of lengths"
g = lambda i: torch.Generator().manual_seed(i)
class Ctc(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(16, 6)
    def forward(s, x, t): return F.ctc_loss(s.l(x).log_softmax(2).transpose(0, 1), t, (8, 7), (3, 2), zero_infinity=True)
case("ctc-lists", Ctc, [(torch.randn(2, 8, 16, generator=g(i)), torch.randint(1, 6, (2, 3), generator=g(i))) for i in range(3)], loss=lambda o: o)
SRC = "checks of values that only raise"
class Ch(nn.Module):
    def __init__(s, f): super().__init__(); s.a, s.b = nn.Linear(16, 16), nn.Linear(16, 16); s.f = f
    def forward(s, x): return s.f(s, x)
def chk(s, x):
    h = s.a(x)
    if torch.isnan(h).any(): raise ValueError("nan")
    return s.b(h.tanh())
def ass(s, x): h = s.a(x); assert torch.isfinite(h).all(); return s.b(h.tanh())
def tass(s, x): h = s.a(x); torch._assert(bool((h.abs() < 1e6).all()), "big"); return s.b(h.tanh())
def assync(s, x): h = s.a(x); torch._assert_async((h.abs() < 1e6).all()); return s.b(h.tanh())
def clampinf(s, x):      # transformers: T5, BART in fp16
    h = s.a(x)
    if h.dtype == torch.float16 or torch.isinf(h).any(): h = h.clamp(-1e4, 1e4)
    return s.b(h.tanh())
def prnt(s, x): h = s.a(x); s.last = float(h.detach().norm()); return s.b(h.tanh())
def log(s, x): h = s.a(x); s.stats = {"norm": h.detach().norm()}; return s.b(h.tanh())
for k, f in {"if isnan raise": chk, "assert isfinite": ass, "torch._assert": tass, "_assert_async": assync, "if isinf clamp": clampinf, "float-for-a-log": prnt, "tensor-for-a-log": log, "gaussian_nll": lambda s, x: F.gaussian_nll_loss(s.a(x), x, s.b(x).exp())}.items():
    case(k, lambda: Ch(f), data(2), loss=None if k != "gaussian_nll" else (lambda o: o))
SRC = "jit-traced and scripted parts"
class Tr(nn.Module):
    def __init__(s, kind): super().__init__(); q = nn.Sequential(nn.Linear(16, 16), nn.Tanh()); s.a = torch.jit.trace(q, torch.randn(4, 16)) if kind == "traced" else torch.jit.script(q) if kind == "scripted" else torch.jit.freeze(torch.jit.script(q.eval())); s.b = nn.Linear(16, 4)
    def forward(s, x): return s.b(s.a(x))
for k in ("traced", "scripted", "frozen"):
    case("jit " + k, lambda: Tr(k), data(2))
    case("jit " + k + " torch.compile", lambda: Tr(k), data(2), compile_with=lambda m, b, opts: torch.compile(m, backend="remat", options={"activation_budget": "90%", "time_limit_s": 3}))
SRC = "sparse tensors, by regions"
A = (torch.rand(6, 6, generator=g(0)) > .5).float()
class Gcn(nn.Module):
    def __init__(s, buf): super().__init__(); s.a, s.b = nn.Linear(16, 16), nn.Linear(16, 4); s.buf = buf; s.register_buffer("A", A.to_sparse()) if buf else None
    def forward(s, x, Ad=None): M = s.A if s.buf else Ad; return torch.sparse.mm(M, s.b(torch.tanh(torch.sparse.mm(M, s.a(x)))))
R = lambda m, b, opts: torch.compile(m, backend="remat", options={"activation_budget": "90%", "time_limit_s": 3})
case("sparse-buffer torch.compile", lambda: Gcn(True), data(2, 6), compile_with=R)
case("sparse-argument torch.compile", lambda: Gcn(False), [(x, A.to_sparse()) for (x,) in data(2, 6)], compile_with=R)
class SpUnused(nn.Module):      # a sparse buffer beside: nothing of the forward reads it
    def __init__(s): super().__init__(); s.a = nn.Linear(16, 4); s.register_buffer("A", A.to_sparse())
    def forward(s, x): return s.a(x)
case("sparse-buffer-not-read", SpUnused, data(2))
SRC = "arguments changed between forward and backward; what a loader does"
class X(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b = nn.Linear(16, 16), nn.Linear(16, 4)
    def forward(s, x): return s.b(torch.tanh(s.a(torch.relu(x) * 2)))
import numpy as np
def ring(m, bs, rec):       # a ring buffer of NumPy that the collector thread fills again while the backward runs
    buf = np.zeros((4, 16), np.float32); x = torch.from_numpy(buf); o = torch.optim.SGD(m.parameters(), lr=.1)
    for i, (d,) in enumerate(bs):
        buf[:] = d.numpy(); o.zero_grad(); l = m(x).square().mean(); buf[:] = 0.; l.backward(); rec.put(str(i), l); rec.model(str(i), m); o.step()
for p in ("redo-all", "store-all", "dtr 60%"):
    case("ring-buffer " + p, X, data(3), loop=ring, kw={} if p == "redo-all" else {"planner": "store-all"} if p == "store-all" else {"planner": "dtr", "activation_budget": "60%"})
def inplace(m, bs, rec):
    o = torch.optim.SGD(m.parameters(), lr=.1)
    for i, (d,) in enumerate(bs): x = d.clone(); o.zero_grad(); l = m(x).square().mean(); x.zero_(); l.backward(); rec.put(str(i), l); rec.model(str(i), m); o.step()
for p in ("redo-all", "store-all"): case("argument-zeroed " + p, X, data(3), loop=inplace, kw={} if p == "redo-all" else {"planner": "store-all"})
class Cb(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b = nn.Linear(16, 16), nn.Linear(16, 4); s.register_buffer("scale", torch.ones(16))
    def forward(s, x): return s.b(torch.tanh(s.a(x)) + torch.sigmoid(s.scale))
def cb(m, bs, rec):          # a counter or an average in a buffer, updated after the loss and before the backward
    o = torch.optim.SGD(m.parameters(), lr=.1)
    for i, (d,) in enumerate(bs):
        o.zero_grad(); l = m(d).square().mean()
        with torch.no_grad(): m.scale.mul_(.9).add_(.1)
        l.backward(); rec.put(str(i), l); rec.model(str(i), m); o.step()
for p in ("redo-all", "store-all"): case("buffer-averaged-before-backward " + p, Cb, data(3), loop=cb, kw={} if p == "redo-all" else {"planner": "store-all"})
SRC = "accelerate#3679 DDP static_graph, in eager and planned"
import torch.distributed as dist, tempfile
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
from torch.nn.parallel import DistributedDataParallel as DDP
def dd(sync):
    def loop(m, bs, rec):
        m = m if isinstance(m, DDP) else DDP(m, static_graph=True); o = torch.optim.SGD(m.parameters(), lr=.1)
        for i in range(0, len(bs), 2):
            o.zero_grad()
            with (m.no_sync() if sync else contextlib.nullcontext()): m(*bs[i]).square().mean().backward()
            m(*bs[i + 1]).square().mean().backward(); rec.model(str(i), m.module); o.step()
    return loop
case("ddp static no_sync", X, data(4), loop=dd(True), compile_with=lambda m, bs, o: DDP(rc.compile(m, bs[0], **o), static_graph=True))
case("ddp static", X, data(4), loop=dd(False), compile_with=lambda m, bs, o: DDP(rc.compile(m, bs[0], **o), static_graph=True))
dist.destroy_process_group()
