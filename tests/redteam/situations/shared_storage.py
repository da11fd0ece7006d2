from _harness import *  # noqa

SRC = "DeepSpeed#2103, FSDP/apex flat storage: parameters that share memory without being one parameter"
def mk(how):
    class S(nn.Module):
        def __init__(s):
            super().__init__(); s.a, s.b = nn.Linear(16, 16), nn.Linear(16, 16)
            if how == "same-data": s.b.weight = nn.Parameter(s.a.weight.data)
            elif how == "same-data frozen": s.b.weight = nn.Parameter(s.a.weight.data, requires_grad=False)
            elif how == "square-transposed": s.b.weight = nn.Parameter(s.a.weight.data.t())
            elif how == "data-square-transposed": s.b.weight.data = s.a.weight.data.t()
            elif how == "row-blocks": f = torch.randn(32, 16); s.a.weight, s.b.weight = nn.Parameter(f[:16]), nn.Parameter(f[16:])
            elif how == "flat": f = torch.randn(2 * (256 + 16)); o = 0; [(setattr(l, n, nn.Parameter(f[o_:o_ + k].view(sh))) ) for l, n, sh, o_, k in ((s.a, "weight", (16, 16), 0, 256), (s.a, "bias", (16,), 256, 16), (s.b, "weight", (16, 16), 272, 256), (s.b, "bias", (16,), 528, 16))]
            elif how == "buffer-of-parameter": s.register_buffer("old", s.a.weight.data)
            elif how == "buffer-slices": f = torch.randn(2, 16); s.register_buffer("m", f[0]); s.register_buffer("v", f[1])
        def forward(s, x):
            h = s.b(torch.tanh(s.a(x)))
            if how == "buffer-of-parameter": h = h @ s.old
            if how == "buffer-slices": h = h * s.m + s.v
            return h
    return S
for h in ("same-data", "same-data frozen", "square-transposed", "data-square-transposed", "row-blocks", "flat", "buffer-of-parameter", "buffer-slices"): case(h, mk(h), data(3), opt=lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=.1))
