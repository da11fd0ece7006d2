from _harness import *  # noqa

SRC = "DeepSpeed#2103 pytorch#81296 modules and weights under several names"
def mk(how):
    class T(nn.Module):
        def __init__(s):
            super().__init__(); s.a = nn.Linear(16, 16)
            if how == "module-twice": s.b = s.a
            elif how == "weight": s.b = nn.Linear(16, 16); s.b.weight = s.a.weight
            elif how == "both": s.b = s.a; s.c = nn.Linear(16, 16); s.c.weight = s.a.weight
            elif how == "weight-and-bias": s.b = nn.Linear(16, 16); s.b.weight, s.b.bias = s.a.weight, s.a.bias
            elif how == "loop": pass
            elif how == "list": s.l = nn.ModuleList([s.a] * 3)
            elif how == "transposed": s.b = nn.Linear(16, 16, bias=False); s.b.weight = nn.Parameter(s.a.weight.t())     # shares the storage, not the parameter
        def forward(s, x):
            if how == "loop":
                for _ in range(3): x = torch.tanh(s.a(x))
                return x
            if how == "list":
                for k in s.l: x = torch.tanh(k(x))
                return x
            x = s.b(torch.tanh(s.a(x)))
            return s.c(torch.tanh(x)) if how == "both" else x
    return T
for h in ("module-twice", "weight", "both", "weight-and-bias", "loop", "list", "transposed"): case(h, mk(h), data(3))
class Tied2(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(10, 16); s.d = nn.Linear(16, 10, bias=False); s.d.weight = s.e.weight; s.e2 = s.e
    def forward(s, i): return s.d(torch.tanh(s.e(i) + s.e2(i.flip(1))))
case("embedding-twice-and-tied", Tied2, [(torch.randint(0, 10, (2, 5), generator=torch.Generator().manual_seed(i)),) for i in range(3)])
