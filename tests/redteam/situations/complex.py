from _harness import *  # noqa

SRC = "pytorch#197084 pinv of complex matrices, wrong under AOTAutograd"
class PI(nn.Module):
    def __init__(s, f, n=4, k=3, dt=torch.complex64): super().__init__(); s.w = nn.Parameter(torch.randn(n, k, dtype=dt)); s.f = f; s.v = nn.Parameter(torch.randn(4, 4))
    def forward(s, x): y = s.f(s.w); return (torch.view_as_real(y) if y.is_complex() else y).square().sum() + (x[:, :4] @ s.v).tanh().sum()
for k, f in {"pinv": torch.linalg.pinv, "svdvals": torch.linalg.svdvals, "qr": lambda w: torch.linalg.qr(w).Q, "norm": lambda w: torch.linalg.matrix_norm(w), "lstsq": lambda w: torch.linalg.lstsq(w, torch.ones(4, 1, dtype=w.dtype)).solution}.items():
    case(k, lambda: PI(f), data())
for k, f in {"inv": torch.linalg.inv, "eigvals": torch.linalg.eigvals, "det": torch.linalg.det, "slogdet": lambda w: torch.linalg.slogdet(w).logabsdet, "matrix_exp": torch.linalg.matrix_exp, "solve": lambda w: torch.linalg.solve(w, torch.ones(4, 1, dtype=w.dtype)), "eigvalsh": lambda w: torch.linalg.eigvalsh(w @ w.mH), "cholesky": lambda w: torch.linalg.cholesky(w @ w.mH + 5 * torch.eye(4, dtype=w.dtype)), "pinv-hermitian": lambda w: torch.linalg.pinv(w @ w.mH, hermitian=True)}.items():
    case(k, lambda: PI(f, 4, 4), data())
SRC = "pytorch#184100 #184101 #125718 #105290 complex literals, abs and angle of transposed"
case("abs-transposed", lambda: PI(lambda w: w.T.abs()), data())
case("angle-transposed", lambda: PI(lambda w: w.T.angle()), data())
case("complex-literal", lambda: PI(lambda w: (w * (2 + 1j)).pow(3)), data())
case("conj-mH-real-imag", lambda: PI(lambda w: (w.mH @ w).real + (w.conj().T @ w).imag), data())
class Rope(nn.Module):
    def __init__(s):
        super().__init__(); s.q, s.o = nn.Linear(16, 16), nn.Linear(16, 4); f = 1 / (100 ** (torch.arange(0, 16, 2) / 16)); s.register_buffer("fc", torch.polar(torch.ones(4, 8), torch.outer(torch.arange(4.), f)), persistent=False)
    def forward(s, x):
        h = torch.view_as_complex(s.q(x).view(4, 8, 2)) * s.fc; return s.o(torch.tanh(torch.view_as_real(h).flatten(1)))
case("rope-view_as_complex", Rope, data())
class FNO(nn.Module):
    def __init__(s): super().__init__(); s.w = nn.Parameter(torch.randn(1, 9, dtype=torch.cfloat) * .3); s.l = nn.Linear(16, 16)
    def forward(s, x):
        for _ in range(2): x = F.gelu(s.l(x) + torch.fft.irfft(torch.fft.rfft(x) * s.w, n=16))
        return x
case("fourier-layer", FNO, data())
class STFT(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(64, 64)
    def forward(s, x):
        z = torch.stft(s.l(x.repeat(1, 4)), 16, 4, window=torch.hann_window(16), return_complex=True); return torch.istft(z * torch.exp(1j * z.abs() * .1), 16, 4, window=torch.hann_window(16)).square().mean() + z.abs().log1p().mean()
case("stft-istft-loss", STFT, data())
