from _harness import *  # noqa

SRC = "modules that nobody here wrote tests for: attention, losses, script, samplers"
g = lambda i: torch.Generator().manual_seed(i)
seq = [(torch.randn(2, 5, 16, generator=g(i)),) for i in range(3)]
case("TransformerEncoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2), seq)
class Mh(nn.Module):
    def __init__(s, need=False): super().__init__(); s.m = nn.MultiheadAttention(16, 2, dropout=.1, batch_first=True, add_bias_kv=True); s.need = need
    def forward(s, x, pad): o, w = s.m(x, x, x, key_padding_mask=pad, need_weights=s.need); return o if w is None else (o, w)
pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
case("mha-padding-mask", Mh, [(x, pad) for (x,) in seq])
case("mha-padding-need-weights", lambda: Mh(True), [(x, pad) for (x,) in seq])
case("mha-other-padding-later", Mh, [(seq[0][0], pad), (seq[1][0], pad.flip(0)), (seq[2][0], torch.zeros_like(pad))])
class Enc(nn.Module):
    def __init__(s): super().__init__(); s.m = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=True)
    def forward(s, x, pad): return s.m(x, src_key_padding_mask=pad)
case("encoder-padding-other-later", Enc, [(seq[0][0], pad), (seq[1][0], pad.flip(0)), (seq[2][0], torch.zeros_like(pad))])
class Ctc(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(16, 6)
    def forward(s, x, t, il, tl): return F.ctc_loss(s.l(x).log_softmax(2).transpose(0, 1), t, il, tl, zero_infinity=True)
case("ctc", Ctc, [(torch.randn(2, 8, 16, generator=g(i)), torch.randint(1, 6, (2, 3), generator=g(i)), torch.tensor([8, 7]), torch.tensor([3, 2])) for i in range(3)], loss=lambda o: o)
class Ada(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(16, 16); s.s = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10])
    def forward(s, x, y): return s.s(s.l(x), y).loss
case("adaptive-softmax", Ada, [(x, torch.tensor([0, 5, 12, 19])) for (x,) in data(3)], loss=lambda o: o)
class Ce(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(16, 6)
    def forward(s, x, y): return F.cross_entropy(s.l(x), y, ignore_index=-100, label_smoothing=.1)
case("all-labels-ignored-NaN", Ce, [(x, torch.tensor([1, -100, 2, 3]) if i != 1 else torch.full((4,), -100)) for i, (x,) in enumerate(data(3))], loss=lambda o: o)
class Masked(Ce):
    def forward(s, x, y): k = y != -100; return F.cross_entropy(s.l(x)[k], y[k])
case("boolean-mask-of-labels", Masked, [(x, torch.tensor([1, -100, 2, 3])) for (x,) in data(3)], loss=lambda o: o)
case("empty-batch", lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), [(torch.randn(0, 16),)] * 2, loss=lambda o: o.sum())
case("bilinear", lambda: type("Bi", (nn.Module,), {"__init__": lambda s: (nn.Module.__init__(s), setattr(s, "b", nn.Bilinear(8, 8, 4)))[0], "forward": lambda s, x: s.b(x[:, :8].tanh(), x[:, 8:].sin())})(), data(2))
class Sc(nn.Module):
    def __init__(s): super().__init__(); s.a = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.Tanh())); s.b = nn.Linear(16, 4)
    def forward(s, x): return s.b(s.a(x))
case("scripted-part", Sc, data(2))
class Tr(Sc):
    def __init__(s): super().__init__(); s.a = torch.jit.trace(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.randn(4, 16))
case("traced-part", Tr, data(2))
@torch.jit.script
def fused(x: torch.Tensor, b: torch.Tensor): return torch.sigmoid(x + b) * x
class Sf(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(16, 16); s.p = nn.Parameter(torch.randn(16))
    def forward(s, x): return fused(s.a(x), s.p)
case("scripted-function", Sf, data(2))
class Tc(nn.Module):
    def __init__(s): super().__init__(); s.a = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), backend="eager"); s.b = nn.Linear(16, 4)
    def forward(s, x): return s.b(s.a(x))
case("compiled-part", Tc, data(2))
from torch.nn.attention import sdpa_kernel, SDPBackend
class Sd(nn.Module):
    def __init__(s): super().__init__(); s.q = nn.Linear(16, 48); s.o = nn.Linear(16, 4)
    def forward(s, x):
        q, k, v = s.q(x).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.MATH): y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return s.o(y.transpose(1, 2).flatten(2))
case("sdpa-kernel-chosen", Sd, seq)
class Cond(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b = nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(s, x): return torch.cond(x.sum() > 0, lambda v: s.a(v).sin(), lambda v: s.b(v).cos(), (x,))
case("torch.cond", Cond, data(3))
class Nest(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(16, 16)
    def forward(s, x): return s.a(torch.nested.nested_tensor([x[:2], x[2:3]], layout=torch.jagged)).values()
case("nested-jagged", Nest, data(2))
class Gs(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(16, 6)
    def forward(s, x, im): th = s.l(x[:1]).view(1, 2, 3) * .1 + torch.eye(2, 3); return F.grid_sample(im, F.affine_grid(th, (1, 3, 6, 6), align_corners=False), align_corners=False, padding_mode="border")
case("spatial-transformer", Gs, [(x, torch.randn(1, 3, 6, 6, generator=g(1))) for (x,) in data(2)])
class Focal(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(16, 5)
    def forward(s, x): p = s.l(x).sigmoid(); t = (x[:, :5] > 0).float(); a = F.binary_cross_entropy(p, t, reduction="none"); return ((1 - torch.exp(-a)) ** 2 * a).mean() + F.huber_loss(p, t) + F.triplet_margin_loss(p, t, p.flip(0)) + F.cosine_embedding_loss(p, t, torch.ones(4)) + F.gaussian_nll_loss(p, t, p.exp())
case("mix-of-losses", Focal, data(2), loss=lambda o: o)
class LM(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(16, 16)
    def forward(s, x): h = s.l(x); return torch.linalg.solve_triangular(torch.eye(4) + h[:, :4].tril(-1), h, upper=False) + torch.cdist(h, h.detach()).mean() + torch.linalg.svd(h).S.sum() + torch.einsum("bi,bj->bij", h, h).logdet().nan_to_num().sum() * 0
case("linalg-mix", LM, data(2))
