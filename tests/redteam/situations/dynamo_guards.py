from _harness import *  # noqa

SRC = "pytorch#117265 #117758 #149502 #176851 #124357 what changes after the first call, under torch.compile(backend=...); one process for each"
import subprocess
names = ["forward_hook", "full_backward_pre_hook", "class-attribute", "unfreeze", "freeze", "global_pre_hook", "forward-replaced", "config-object"]
GLOB = 1.0
class Cfg: w = 1.0
class M(nn.Module):
    gain = 1.0
    def __init__(s): super().__init__(); s.a, s.d, s.b = nn.Linear(16, 16), nn.Dropout(.2), nn.Linear(16, 4); s.k = 1.0; s.cfg = Cfg(); s.cfg.w = 1.0
    def forward(s, x): return s.b(s.d(torch.tanh(s.a(x))) * s.gain * s.k * GLOB * s.cfg.w)
def setg(v): globals()["GLOB"] = v
H = {"full_backward_pre_hook": lambda m: m.a.register_full_backward_pre_hook(lambda k, g: tuple(t * 2 for t in g)), "full_backward_hook": lambda m: m.a.register_full_backward_hook(lambda k, gi, go: tuple(None if t is None else t * 2 for t in gi)), "forward_hook": lambda m: m.a.register_forward_hook(lambda k, i, o: o * 2), "forward_pre_hook": lambda m: m.a.register_forward_pre_hook(lambda k, i: (i[0] * 2,)), "global_pre_hook": lambda m: nn.modules.module.register_module_forward_pre_hook(lambda k, i: (i[0] * 2,) if isinstance(k, nn.Linear) else None), "class-attribute": lambda m: setattr(M, "gain", 2.0), "attribute": lambda m: setattr(m, "k", 2.0), "dropout-p": lambda m: setattr(m.d, "p", .6), "weight-hook": lambda m: m.a.weight.register_hook(lambda g: g * 3), "freeze": lambda m: m.a.requires_grad_(False), "unfreeze": lambda m: m.a.requires_grad_(True), "forward-replaced": lambda m: setattr(m.a, "forward", lambda x: F.linear(x, m.a.weight) * 3), "eval-of-a-part": lambda m: m.d.eval(), "global-constant": lambda m: setg(2.0), "config-object": lambda m: setattr(m.cfg, "w", 2.0)}
if len(sys.argv) < 2:
    for n in names:
        for b in ("remat", "aot_eager"):
            r = subprocess.run([sys.executable, __file__, n, b], capture_output=True, text=True); print((r.stdout or text_of(r.stderr)[-300:]).strip(), flush=True)
else:
    n, b = sys.argv[1:]
    def make():
        m = M()
        if n == "unfreeze": m.a.requires_grad_(False)
        return m
    def loop(m, bs, rec):
        base = getattr(m, "_orig_mod", m); o = torch.optim.SGD(base.parameters(), lr=.1); r = None
        try:
            for i, x in enumerate(bs):
                torch.manual_seed(i)
                if i == 2: r = H[n](base)
                o.zero_grad(); y = m(*x); y.square().mean().backward(); rec.out(str(i), y); rec.model(str(i), base); o.step()
        finally:
            if hasattr(r, "remove"): r.remove()
            M.gain = 1.0; setg(1.0)
    case(f"{n} {b}", make, data(4), loop=loop, compile_with=lambda m, bs, o: torch.compile(m, backend=b, **({"options": {"activation_budget": "90%", "time_limit_s": 3}} if b == "remat" else {})))
