from _harness import *  # noqa

SRC = "accelerate#538 R-Drop#8 GC-DPR#12 several forwards before a backward; gradient caching"
class M(nn.Module):
    def __init__(s): super().__init__(); s.a, s.n, s.b, s.d = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4), nn.Dropout(.3)
    def forward(s, x): return s.b(s.d(torch.tanh(s.n(s.a(x)))))
def lp(f):
    def loop(m, bs, rec):
        o = torch.optim.SGD(m.parameters(), lr=.1)
        for i, (x,) in enumerate(bs):
            torch.manual_seed(100 + i); o.zero_grad(); rec.put(f"{i}.l", f(m, x)); rec.put(f"{i}.rng", torch.get_rng_state()); rec.model(str(i), m); o.step()
    return loop
def rdrop(m, x):
    p, q = m(x), m(x); l = p.square().mean() + F.kl_div(p.log_softmax(1), q.softmax(1), reduction="batchmean") + F.kl_div(q.log_softmax(1), p.softmax(1), reduction="batchmean"); l.backward(); return l
case("r-drop", M, data(), loop=lp(rdrop))
def gc(m, x):
    chunks = [x[i:i + 4] for i in (0, 4)]; st, em = [], []
    with torch.no_grad():
        for c in chunks: st.append(torch.get_rng_state()); em.append(m(c))
    e = torch.cat(em).requires_grad_(); s = e @ e.t(); l = F.cross_entropy(s, torch.arange(8)); l.backward(); end = torch.get_rng_state()
    for c, r, g in zip(chunks, st, e.grad.split(4)):
        torch.set_rng_state(r); (m(c) * g).sum().backward()
    torch.set_rng_state(end); return l
case("gradient-cache", M, data(4, 8), loop=lp(gc), args=(torch.randn(4, 16),))
def pipeline(m, x):      # 1F1B: forwards first, backwards in the order of forwards
    ys = [m(x[i:i + 4].clone()) for i in (0, 4, 8)]; ls = [y.square().mean() for y in ys]
    for l in ls: l.backward()
    return sum(ls)
case("pipeline-microbatches-fifo", M, data(4, 12), loop=lp(pipeline), args=(torch.randn(4, 16),))
def lifo(m, x):
    ls = [m(x[i:i + 4].clone()).square().mean() for i in (0, 4, 8)]
    for l in reversed(ls): l.backward()
    return sum(ls)
case("microbatches-lifo", M, data(4, 12), loop=lp(lifo), args=(torch.randn(4, 16),))
def truncated(m, x):      # forward whose result is thrown away
    m(x); y = m(x * 2).square().mean(); y.backward(); return y
case("forward-thrown-away", M, data(), loop=lp(truncated))
def chainm(m, x): y = m(x); l = m(torch.cat([y] * 4, 1)).square().mean(); l.backward(); return l
case("output-fed-back", M, data(), loop=lp(chainm), args=(torch.randn(4, 16, requires_grad=True),))
def retain(m, x): y = m(x); y[:, 0].sum().backward(retain_graph=True); g = [p.grad.clone() for p in m.parameters()]; y[:, 1].square().sum().backward(); return sum(t.sum() for t in g)
case("retain_graph-two-losses", M, data(), loop=lp(retain))
def twice(m, x):
    l = m(x).square().mean(); l.backward()
    try: l.backward()
    except RuntimeError: return l + 0.
    return l * float("nan")
case("second-backward-without-retain (must raise)", M, data(2), loop=lp(twice))
def inputs(m, x): l = m(x).square().mean(); l.backward(inputs=[m.b.weight]); return l
case("backward(inputs=[last])", M, data(), loop=lp(inputs))
def inputs2(m, x): l = m(x).square().mean(); l.backward(inputs=[m.a.weight], retain_graph=True); l.backward(inputs=[m.b.weight]); return l
case("backward(inputs=) twice", M, data(), loop=lp(inputs2))
def ag(m, x): l = m(x).square().mean(); g = torch.autograd.grad(l, [m.b.weight, m.a.bias]); return sum(t.sum() for t in g)
case("autograd.grad-of-some", M, data(), loop=lp(ag))
def jac(m, x):
    y = m(x).sum(0); return torch.stack([torch.autograd.grad(y[k], m.a.weight, retain_graph=True)[0] for k in range(4)]).sum()
case("jacobian-rows-retain", M, data(2), loop=lp(jac))
def isb(m, x):
    y = m(x); v = torch.eye(4)[:, None, :].expand(4, 4, 4); g, = torch.autograd.grad(y, m.a.weight, v, is_grads_batched=True); return g.sum()
case("is_grads_batched", M, data(2), loop=lp(isb))
def multi(m, x): y = m(x); torch.autograd.backward([y[:, 0].sum(), y[:, 1].square().sum()]); return y.sum()
case("autograd.backward-of-two", M, data(2), loop=lp(multi))
def other_thread(m, x):
    import threading; l = m(x).square().mean(); t = threading.Thread(target=l.backward); t.start(); t.join(); return l
case("backward-in-another-thread", M, data(2), loop=lp(other_thread))
SRC = "pytorch#81296 #81296 hooks of shared parameters; optimizer step within the backward (tutorials#2568)"
def inback(m, bs, rec):
    os = {p: torch.optim.SGD([p], lr=.1) for p in m.parameters()}; n = []
    hs = [p.register_post_accumulate_grad_hook(lambda p: (n.append(1), os[p].step(), os[p].zero_grad(), None)[3]) for p in m.parameters()]
    for i, b in enumerate(bs): torch.manual_seed(i); m(*b).square().mean().backward(); rec.model(str(i), m)
    rec.put("n", len(n)); [h.remove() for h in hs]
case("optimizer-in-backward", M, data(), loop=inback)
class T(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(16, 16); s.b = s.a; s.c = nn.Linear(16, 16); s.c.weight = s.a.weight
    def forward(s, x): return s.c(torch.tanh(s.b(torch.tanh(s.a(x)))))
def cnt(m, bs, rec):
    n = []; h = m.a.weight.register_hook(lambda g: (n.append(1), g * .5)[1]); h2 = m.a.weight.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(2), None)[1])
    o = torch.optim.SGD(m.parameters(), lr=.1)
    for i, b in enumerate(bs): o.zero_grad(); m(*b).square().mean().backward(); rec.model(str(i), m); o.step()
    rec.put("n", len(n)); h.remove(); h2.remove()
case("hooks-of-a-shared-parameter", T, data(), loop=cnt)
case("shared-three-times", T, data())
case("backward-in-optimizer-hook-shared", T, data(), loop=inback)
SRC = "LBFGS, closures"
def lb(m, bs, rec):
    o = torch.optim.LBFGS(m.parameters(), lr=.1, max_iter=5, line_search_fn="strong_wolfe"); x = bs[0][0]
    def cl(): o.zero_grad(); l = m(x).square().mean(); l.backward(); return l
    for i in range(2): rec.put(str(i), o.step(cl)); rec.model(str(i), m)
case("lbfgs-strong-wolfe", T, data(2), loop=lb)
