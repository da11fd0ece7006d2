from _harness import *  # noqa

SRC = "real matrices: Gaussian processes, flows, Kalman filters"
class PI(nn.Module):
    def __init__(s, f, n=4, k=4): super().__init__(); s.w = nn.Parameter(torch.randn(n, k)); s.f = f; s.v = nn.Parameter(torch.randn(4, 4))
    def forward(s, x): y = s.f(s.w); return (torch.view_as_real(y) if y.is_complex() else y).square().sum() + (x[:, :4] @ s.v).tanh().sum()
for k, f in {"inv": torch.linalg.inv, "inverse": torch.inverse, "solve": lambda w: torch.linalg.solve(w, torch.ones(4, 1)), "cholesky": lambda w: torch.linalg.cholesky(w @ w.mH + 5 * torch.eye(4)), "eigvals": torch.linalg.eigvals, "eigh": lambda w: torch.linalg.eigh(w + w.mH).eigenvalues, "det": torch.linalg.det, "slogdet": lambda w: torch.linalg.slogdet(w).logabsdet, "lu_solve": lambda w: torch.linalg.lu_solve(*torch.linalg.lu_factor(w), torch.ones(4, 1)), "lstsq": lambda w: torch.linalg.lstsq(w, torch.ones(4, 1)).solution, "qr": lambda w: torch.linalg.qr(w).Q, "svd": lambda w: torch.linalg.svd(w).S, "matrix_exp": torch.linalg.matrix_exp, "pinv": torch.linalg.pinv, "matrix_power": lambda w: torch.linalg.matrix_power(w, -2), "cholesky_inverse": lambda w: torch.cholesky_inverse(torch.linalg.cholesky(w @ w.mH + 5 * torch.eye(4)))}.items():
    case("real " + k, lambda: PI(f), data(2), loss=lambda o: o)
SRC = "torch.distributions in a forward (VAE, RL policies)"
D = torch.distributions
class Di(nn.Module):
    def __init__(s, f): super().__init__(); s.a, s.b = nn.Linear(16, 32), nn.Linear(16, 16); s.f = f
    def forward(s, x): return s.b(s.f(s.a(x)))
V = dict(validate_args=False)
for k, f in {"normal-validated": lambda h: D.Normal(h[:, :16], h[:, 16:].exp()).rsample(), "normal": lambda h: D.Normal(h[:, :16], h[:, 16:].exp(), **V).rsample(), "gamma": lambda h: D.Gamma(h[:, :16].exp(), 1., **V).rsample(), "dirichlet": lambda h: D.Dirichlet(F.softplus(h[:, :16]) + .1, **V).rsample(), "kl": lambda h: D.kl_divergence(D.Normal(h[:, :16], h[:, 16:].exp(), **V), D.Normal(torch.zeros(4, 16), torch.ones(4, 16), **V)), "categorical-log_prob": lambda h: h[:, :16] * D.Categorical(logits=h, **V).log_prob(torch.tensor([0, 1, 2, 3]))[:, None], "categorical-sample": lambda h: h[:, :16] * (lambda c: c.log_prob(c.sample()))(D.Categorical(logits=h, **V))[:, None], "relaxed": lambda h: D.RelaxedOneHotCategorical(torch.tensor(.7), logits=h[:, :16], **V).rsample(), "mvn": lambda h: D.MultivariateNormal(h[:, :16], scale_tril=torch.eye(16), **V).rsample()}.items():
    case(k, lambda: Di(f), data(3))
case("normal-validated torch.compile", lambda: Di(lambda h: D.Normal(h[:, :16], h[:, 16:].exp()).rsample()), data(3), compile_with=lambda m, b, opts: torch.compile(m, backend="remat", options={"activation_budget": "90%", "time_limit_s": 3}))
SRC = "docs/guide/mixed_precision.md: `with torch.autocast` inside of a forward needs nothing"
ac = lambda e=True, d=torch.bfloat16: torch.autocast("cpu", d, enabled=e)
class A(nn.Module):
    def __init__(s, how): super().__init__(); s.a, s.b, s.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4); s.how = how
    def forward(s, x):
        if s.how == "once":
            with ac(): h = torch.tanh(s.b(torch.tanh(s.a(x))))
        elif s.how == "twice":
            with ac(): h = torch.tanh(s.b(torch.tanh(s.b(torch.tanh(s.a(x))))))
        elif s.how == "twice-nocache":
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False): h = torch.tanh(s.b(torch.tanh(s.b(torch.tanh(s.a(x))))))
        elif s.how == "two-blocks":
            with ac(): h = torch.tanh(s.b(torch.tanh(s.a(x))))
            with ac(): h = torch.tanh(s.b(h))
        return s.c(h.float())
for h in ("once", "twice", "twice-nocache", "two-blocks"): case("autocast-inside " + h, lambda: A(h), data(3))
SRC = "autograd.grad inside of the forward, by regions"
R = lambda **o: (lambda m, b, opts: torch.compile(m, backend="remat", options={"activation_budget": "90%", "time_limit_s": 3, **o}))
class En(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b = nn.Linear(16, 32), nn.Linear(32, 1)
    def forward(s, x):
        x = x.detach().requires_grad_(); e = s.b(torch.tanh(s.a(x))).sum(); f, = torch.autograd.grad(e, x, create_graph=True); return e, -f
case("forces torch.compile", En, data(3), loss=lambda o: o[0] + o[1].square().mean(), compile_with=R())
class Lap(En):
    def forward(s, x): f = lambda v: s.b(torch.tanh(s.a(v))).squeeze(); return torch.func.vmap(torch.func.hessian(f))(x).diagonal(dim1=1, dim2=2).sum(1)
case("laplacian torch.compile", Lap, data(3), compile_with=R())
class G1(En):
    def forward(s, x): return torch.func.vmap(torch.func.grad(lambda v: s.b(torch.tanh(s.a(v))).squeeze()))(x)
case("forces by func.vmap(grad)", G1, data(3))
class G2(En):
    def forward(s, x): return torch.func.grad(lambda v: s.b(torch.tanh(s.a(v))).sum())(x)
case("forces by func.grad", G2, data(3))
SRC = "complex numbers as arguments"
class Cx(nn.Module):
    def __init__(s, f): super().__init__(); s.l = nn.Linear(16, 16); s.f = f
    def forward(s, x): return s.f(torch.view_as_complex(s.l(x).view(4, 8, 2)))
for k, f in {"times-1j": lambda z: (z * 1j).real, "exp-1j-angle": lambda z: torch.exp(1j * z.real).imag, "complex(re,im)": lambda z: torch.complex(z.real, z.imag).abs(), "polar": lambda z: torch.polar(z.abs(), z.real).imag, "angle": lambda z: z.angle(), "add-complex": lambda z: (z + (1 + 2j)).abs(), "stft": lambda z: torch.stft(z.real.repeat(1, 4), 16, 4, window=torch.hann_window(16), return_complex=True).abs(), "fft": lambda z: torch.fft.fft(z).abs()}.items(): case("complex " + k, lambda: Cx(f), data(2))
SRC = "is_grads_batched, without randomness"
class P(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(s, x): return s.b(torch.tanh(s.a(x)))
def isb(m, bs, rec):
    for i, (x,) in enumerate(bs): y = m(x); v = torch.eye(4)[:, None, :].expand(4, 4, 4); g, = torch.autograd.grad(y, m.a.weight, v, is_grads_batched=True); rec.put(str(i), g)
case("is_grads_batched", P, data(2), loop=isb)
SRC = "save_on_cpu and hooks with lossy packing around a step"
def lossy(m, bs, rec):
    for i, (x,) in enumerate(bs):
        m.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16() if t.dtype == torch.float32 else t, lambda t: t.float() if t.dtype == torch.bfloat16 else t): y = m(x).square().sum()
        y.backward(); rec.model(str(i), m)
case("lossy-hooks-around", P, data(2), loop=lossy)
case("lossy-hooks-around nothing recomputed", P, data(2), loop=lossy, kw={"planner": "store-all"})
