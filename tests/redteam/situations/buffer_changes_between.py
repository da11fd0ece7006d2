from _harness import *  # noqa

SRC = "pytorch#197039 recomputing a read of what is mutated between forward and backward"
def mk(read):
    class M(nn.Module):
        def __init__(s):
            super().__init__(); s.a, s.b = nn.Linear(16, 32), nn.Linear(32, 4); s.register_buffer("scale", torch.full((32,), 1.5))
            s.register_buffer("table", torch.randn(10, 32))
        def forward(s, x): return s.b(torch.tanh(read(s, s.a(x))))
    return M
def loop(change):
    def f(m, bs, rec):
        o = torch.optim.SGD(m.parameters(), lr=.1)
        for i, (x,) in enumerate(bs):
            o.zero_grad(); y = m(x)
            change(m, x)
            y.square().sum().backward(); rec.out(str(i), y); rec.model(str(i), m); o.step()
    return f
bump = lambda m, x: m.scale.add_(1.)
datab = lambda m, x: m.scale.data.add_(1.)
case("clone-then-bump", mk(lambda s, h: h * s.scale.clone()), data(), loop=loop(bump))
case("sigmoid-then-bump", mk(lambda s, h: h * torch.sigmoid(s.scale)), data(), loop=loop(bump))
case("direct-then-bump (eager raises)", mk(lambda s, h: h * s.scale), data(), loop=loop(bump))
case("add-then-bump (eager does not save it)", mk(lambda s, h: torch.tanh(h + s.scale)), data(), loop=loop(bump))
case("sigmoid-then-data-bump", mk(lambda s, h: h * torch.sigmoid(s.scale)), data(), loop=loop(datab))
case("table-lookup-then-write", mk(lambda s, h: h * s.table[:4].exp()), data(), loop=loop(lambda m, x: m.table.mul_(.5)))
case("input-refilled", mk(lambda s, h: h), data(), loop=loop(lambda m, x: None))
class X(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(16, 16); s.b = nn.Linear(16, 4)
    def forward(s, x): return s.b(torch.tanh(s.a(torch.relu(x) * 2)))
case("input-refilled-with-next-batch", X, data(), loop=loop(lambda m, x: x.normal_()))
case("input-refilled-data", X, data(), loop=loop(lambda m, x: x.data.normal_()))
case("input-refilled-numpy", X, data(), loop=loop(lambda m, x: x.numpy().__imul__(3)))
case("weight-no-grad-inplace (eager raises)", X, data(), loop=loop(lambda m, x: m.b.weight.data.mul_(.9) if False else [p.mul_(.9) for p in [m.b.weight.detach()]]))
