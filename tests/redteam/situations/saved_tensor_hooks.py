from _harness import *  # noqa

SRC = "pytorch#116221 #113263 #147565 saved_tensors_hooks, save_on_cpu around or inside a step"
G = torch.autograd.graph
class M(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b, s.c = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
    def forward(s, x): return s.c(torch.tanh(s.b(torch.tanh(s.a(x)))))
class Twice(M):
    def forward(s, x):
        h = torch.tanh(s.a(x))
        with G.saved_tensors_hooks(lambda t: t, lambda t: 2 * t): h = h * s.b(h)
        return s.c(h)
case("unpack-doubles-inside", Twice, data())
class Cpu(M):
    def forward(s, x):
        with G.save_on_cpu(): h = torch.tanh(s.b(torch.tanh(s.a(x))))
        return s.c(h)
case("save_on_cpu-inside", Cpu, data())
class Bf(M):
    def forward(s, x):
        with G.saved_tensors_hooks(lambda t: t.bfloat16() if t.dtype == torch.float32 else t, lambda t: t.float() if t.dtype == torch.bfloat16 else t): h = torch.tanh(s.b(torch.tanh(s.a(x))))
        return s.c(h)
case("compress-to-bf16-inside", Bf, data())
def around(ctx):
    def f(m, bs, rec):
        o = torch.optim.SGD(m.parameters(), lr=.1)
        for i, b in enumerate(bs):
            o.zero_grad()
            with ctx(): y = m(*b); l = y.square().sum()
            l.backward(); rec.out(str(i), y); rec.model(str(i), m); o.step()
    return f
case("save_on_cpu-around", M, data(), loop=around(G.save_on_cpu))
case("compress-around", M, data(), loop=around(lambda: G.saved_tensors_hooks(lambda t: t.bfloat16() if t.dtype == torch.float32 else t, lambda t: t.float() if t.dtype == torch.bfloat16 else t)))
case("disable-hooks-around", M, data(), loop=around(lambda: G.disable_saved_tensors_hooks("no")))
case("allow-mutation-around", M, data(), loop=around(G.allow_mutation_on_saved_tensors))
import torch.utils.checkpoint as C
def outer(re):
    def f(m, bs, rec):
        o = torch.optim.SGD(m.parameters(), lr=.1)
        for i, (x,) in enumerate(bs):
            o.zero_grad(); x = x.clone().requires_grad_(); y = C.checkpoint(m, x, use_reentrant=re); y.square().sum().backward(); rec.out(str(i), y); rec.model(str(i), m); o.step()
    return f
SRC = "pytorch#131062 checkpoint over a compiled module"
case("checkpoint-around-the-drop-in non-reentrant", M, data(), loop=outer(False), args=(data(1)[0][0].requires_grad_(),))
case("checkpoint-around-the-drop-in reentrant", M, data(), loop=outer(True), args=(data(1)[0][0].requires_grad_(),))
