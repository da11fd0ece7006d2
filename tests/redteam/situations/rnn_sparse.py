from _harness import *  # noqa

SRC = "pytorch#171978 #162375 #112044 packed sequences; #777"
from torch.nn.utils.rnn import pack_padded_sequence as pk, pad_packed_sequence as un
class R(nn.Module):
    def __init__(s, kind=nn.LSTM, packed=True, dt=torch.float32): super().__init__(); s.r = kind(16, 8, 2, batch_first=True, bidirectional=True, dropout=.2, dtype=dt); s.o = nn.Linear(16, 4, dtype=dt); s.p = packed
    def forward(s, x, n):
        if s.p: y, _ = s.r(pk(x, n, batch_first=True, enforce_sorted=False)); y, _ = un(y, batch_first=True, total_length=x.shape[1])
        else: y, _ = s.r(x)
        return s.o(y.tanh())
def seqs(dt=torch.float32): return [(torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(i)).to(dt), torch.tensor([5, 3, 2])) for i in range(3)]
case("lstm-packed", R, seqs())
case("lstm-packed-float64", lambda: R(dt=torch.float64), seqs(torch.float64))
case("lstm-not-packed", lambda: R(packed=False), seqs())
def nomkl(m, bs, o):
    with torch.backends.mkldnn.flags(enabled=False): return rc.compile(m, bs[0], **o)
def lnomkl(m, bs, rec):
    with torch.backends.mkldnn.flags(enabled=False): std_loop(m, bs, rec)
case("lstm-not-packed-without-oneDNN", lambda: R(packed=False), seqs(), compile_with=nomkl, loop=lnomkl)
case("lstm-packed-without-oneDNN", R, seqs(), compile_with=nomkl, loop=lnomkl)
case("gru", lambda: R(nn.GRU, False), seqs())
case("rnn", lambda: R(nn.RNN, False), seqs())
case("lstm-packed torch.compile", R, seqs(), compile_with=lambda m, bs, o: torch.compile(m, backend="remat", options={"activation_budget": "90%", "time_limit_s": 4}))
class Cell(nn.Module):
    def __init__(s): super().__init__(); s.c, s.g, s.o = nn.LSTMCell(16, 8), nn.GRUCell(8, 8), nn.Linear(8, 4)
    def forward(s, x, h):
        h, c = h; g = torch.zeros(3, 8)
        for t in range(x.shape[1]): h, c = s.c(x[:, t], (h, c)); g = s.g(h, g)
        return s.o(g), (h, c)
def bptt(m, bs, rec):
    o = torch.optim.SGD(m.parameters(), lr=.1); h = (torch.zeros(3, 8), torch.zeros(3, 8))
    for i, (x, _) in enumerate(bs):
        o.zero_grad(); y, h = m(x, h); y.square().mean().backward(); h = tuple(t.detach() for t in h); rec.out(str(i), (y, h)); rec.model(str(i), m); o.step()
SRC = "truncated BPTT with cells, hidden state carried"
case("tbptt-cells", Cell, seqs(), loop=bptt, args=(torch.randn(3, 5, 16), (torch.zeros(3, 8), torch.zeros(3, 8))))
SRC = "pytorch#130687 #169119 graph networks with a sparse adjacency"
A = (torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > .5).float()
class Gcn(nn.Module):
    def __init__(s, lay, buf=True):
        super().__init__(); s.a, s.b = nn.Linear(16, 16), nn.Linear(16, 4); s.buf = buf
        if buf: s.register_buffer("A", A.to_sparse() if lay == "coo" else A.to_sparse_csr() if lay == "csr" else A)
    def forward(s, x, Ad=None): M = s.A if s.buf else Ad; return torch.sparse.mm(M, s.b(torch.tanh(torch.sparse.mm(M, s.a(x)))))
nodes = data(3, 6)
case("coo-buffer", lambda: Gcn("coo"), nodes)
case("csr-buffer", lambda: Gcn("csr"), nodes)
case("coo-argument", lambda: Gcn("coo", False), [(x, A.to_sparse()) for (x,) in nodes])
class Mp(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b = nn.Linear(32, 16), nn.Linear(16, 4)
    def forward(s, x, e):
        m = torch.tanh(s.a(torch.cat([x[e[0]], x[e[1]]], 1))); w = m[:, :1]; mx = torch.full((6, 1), -1e9).scatter_reduce(0, e[1][:, None], w, "amax"); ex = (w - mx[e[1]]).exp(); den = torch.zeros(6, 1).index_add(0, e[1], ex); return s.b(torch.zeros(6, 16).index_add(0, e[1], m * ex / den[e[1]]))
E = A.nonzero().t().contiguous()
case("message-passing-edge-softmax", Mp, [(x, E) for (x,) in nodes])
class Coal(nn.Module):
    def __init__(s): super().__init__(); s.v = nn.Parameter(torch.randn(E.shape[1])); s.a = nn.Linear(16, 4)
    def forward(s, x): return torch.sparse.mm(torch.sparse_coo_tensor(E, s.v, (6, 6)), s.a(x))
case("learned-sparse-values", Coal, nodes)
