from _harness import *  # noqa

SRC = "ONNX files as tools write them"
import numpy as np, onnx, tempfile, pathlib
from onnx import helper as H, numpy_helper as N, TensorProto as TP
from remat_compile.capture.onnx import build_module
D = pathlib.Path(tempfile.mkdtemp()); rs = np.random.RandomState(0)
f32 = lambda *s: (rs.randn(*s) * .3).astype(np.float32)
I = lambda n, a: N.from_array(np.asarray(a), n)
V = lambda n, s, t=TP.FLOAT: H.make_tensor_value_info(n, t, s)
def model(nodes, inputs, outputs, inits, opset=17, extra_inputs=(), ir=8, sub=(), domains=()):
    g = H.make_graph(nodes, "g", list(inputs) + list(extra_inputs), outputs, list(inits))
    return H.make_model(g, opset_imports=[H.make_opsetid("", opset)] + [H.make_opsetid(d, 1) for d in domains], ir_version=ir)
def go(name, m, ref=None, x=None, src="", tol=1e-5, check=True, save=None, **kw):
    """plans, compares gradients of a step with a module that was written by hand"""
    t0 = time.time(); p = D / (re.sub(r"\W", "_", name) + ".onnx")
    try:
        if check: onnx.checker.check_model(m)
        (save or onnx.save)(m, str(p))
        with warnings.catch_warnings(record=True) as ws:
            warnings.simplefilter("always")
            torch.manual_seed(0); b = build_module(str(p), **kw); args = b.args if x is None else x
            c = rc.compile(b.module, tuple(args), **BUDGET)
            rec = Rec(); rr = Rec()
            for i in range(2):
                torch.manual_seed(i); o = first(c(*args)); o.square().sum().backward()
                rr.out(str(i), o)
            names = {n: pp.grad.clone() for n, pp in c.named_parameters() if pp.grad is not None}; bufs = {n: t.clone() for n, t in c.named_buffers()}
        codes = ",".join(sorted({k for w in ws for k in re.findall(r"FB\d{4}", str(w.message))}))
        st, more = "OK (ran)", f"{len(names)} gradients {sorted(names)[:6]}; {recomputed(c)}"
        if ref is not None:
            got = ref(names, bufs, args); st = "OK" if got is True else "WARNED-DIFF" if codes else "SILENT"; more += "" if got is True else f" {got}"
        print(f"{st} | onnx_files/{name} | {more} warned [{codes}] | {time.time()-t0:.1f}s | {src or SRC}", flush=True)
    except FBError as e: print(f"REFUSED {','.join(dict.fromkeys(d.code for d in e.diagnostics))} | onnx_files/{name} | {text_of(e)[:500]} | {time.time()-t0:.1f}s | {src or SRC}", flush=True)
    except Exception as e:
        tb = traceback.extract_tb(e.__traceback__)[-1]; print(f"CRASH {type(e).__name__} | onnx_files/{name} | {text_of(e)[:300]} @{tb.filename.split('site-packages/')[-1]}:{tb.lineno} | {time.time()-t0:.1f}s | {src or SRC}", flush=True)
def close(names, want):
    bad = []
    for k, v in want.items():
        if v is None:
            if k in names: bad.append(f"{k} has a gradient")
        elif k not in names: bad.append(f"{k} has none")
        elif names[k].shape != v.shape or not torch.allclose(names[k].double(), v.double(), rtol=1e-4, atol=1e-5): bad.append(f"{k} {diff(v, names[k])}")
    return True if not bad else "; ".join(bad)
T = lambda a: torch.tensor(a)
W1, b1, W2 = f32(16, 8), f32(8), f32(8, 4)
def mlp_ref(names, bufs, args, n=("W1", "b1", "W2"), steps=2):
    w = [T(a).requires_grad_() for a in (W1, b1, W2)]; x = args[0]; (steps * (torch.relu(x @ w[0] + w[1]) @ w[2]).square().sum()).backward(); return close(names, dict(zip(n, (t.grad for t in w))))
nd = lambda op, i, o, **k: H.make_node(op, i, o, **k)
mlp = [nd("MatMul", ["x", "W1"], ["h"]), nd("Add", ["h", "b1"], ["h1"]), nd("Relu", ["h1"], ["h2"]), nd("MatMul", ["h2", "W2"], ["y"])]
ins = [I("W1", W1), I("b1", b1), I("W2", W2)]; xin, yout = [V("x", [4, 16])], [V("y", [4, 4])]
go("plain", model(mlp, xin, yout, ins), mlp_ref)
go("initializers-are-inputs-too (ir 3, opset 8)", model(mlp, xin, yout, ins, opset=8, ir=3, extra_inputs=[V("W1", [16, 8]), V("b1", [8]), V("W2", [8, 4])]), mlp_ref, src="old exporters, Keras; ort warns CleanUnusedInitializers")
def ext(m, p): onnx.save(m, p, save_as_external_data=True, all_tensors_to_one_file=True, location=pathlib.Path(p).name + ".data", size_threshold=0)
go("external-data-one-file", model(mlp, xin, yout, ins), mlp_ref, save=ext)
go("external-data-missing", model(mlp, xin, yout, ins), mlp_ref, save=lambda m, p: (ext(m, p), os.remove(p + ".data")))
go("external-data-cut-short", model(mlp, xin, yout, ins), mlp_ref, save=lambda m, p: (ext(m, p), os.truncate(p + ".data", 100)))
go("no-opset", (lambda m: (m.ClearField("opset_import"), m)[1])(model(mlp, xin, yout, ins)), mlp_ref, check=False)
go("nodes-out-of-order", model(mlp[::-1], xin, yout, ins), mlp_ref, check=False)
go("dynamic-batch-unnamed", model(mlp, [V("x", [None, 16])], [V("y", [None, 4])], ins), mlp_ref)
go("dynamic-batch-named", model(mlp, [V("x", ["N", 16])], [V("y", ["N", 4])], ins), mlp_ref, dims={"N": 4})
bn = [nd("Conv", ["x", "Wc"], ["c"], pads=[1, 1, 1, 1]), nd("BatchNormalization", ["c", "g", "be", "rm", "rv"], ["n", "rm2", "rv2"], training_mode=1, momentum=.9, epsilon=1e-5), nd("Relu", ["n"], ["r"]), nd("GlobalAveragePool", ["r"], ["y"])]
Wc, ga, be = f32(6, 3, 3, 3), f32(6) + 1, f32(6); rm, rv = np.zeros(6, np.float32), np.ones(6, np.float32)
bi = [I("Wc", Wc), I("g", ga), I("be", be), I("rm", rm), I("rv", rv)]
def bn_ref(names, bufs, args):
    w = [T(a).requires_grad_() for a in (Wc, ga, be)]; m, v = T(rm.copy()), T(rv.copy())
    for _ in range(2):
        c = F.conv2d(args[0], w[0], padding=1); d = c.detach(); m.mul_(.9).add_(d.mean((0, 2, 3)), alpha=.1); v.mul_(.9).add_(d.var((0, 2, 3), correction=0), alpha=.1)
        F.relu(F.batch_norm(c, None, None, w[1], w[2], True)).mean((2, 3), keepdim=True).square().sum().backward()
    r = close(names, {"Wc": w[0].grad, "g": w[1].grad, "be": w[2].grad, "rm": None, "rv": None})
    if r is not True: return r
    return True if "rm" in bufs and torch.allclose(bufs["rm"], m, atol=1e-5) and torch.allclose(bufs["rv"], v, rtol=1e-3) else f"running mean {bufs.get('rm')} vs {m}; var {bufs.get('rv')} vs {v} (ONNX: the population variance)"
xi = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))]
go("batchnorm-training_mode", model(bn, [V("x", [4, 3, 8, 8])], [V("y", [4, 6, 1, 1]), V("rm2", [6]), V("rv2", [6])], bi), bn_ref, xi, src="onnxruntime#17879 #16867 onnxscript#818 BatchNormalization in training_mode")
go("batchnorm-training_mode-running-outputs-dropped", model(bn, [V("x", [4, 3, 8, 8])], [V("y", [4, 6, 1, 1])], bi), bn_ref, xi, src="onnxruntime#17879")
def drop_ref(names, bufs, args): return True if set(names) == {"W1", "b1", "W2"} and all(g.abs().sum() > 0 for g in names.values()) else str(sorted(names))
dr = lambda extra: [mlp[0], mlp[1], mlp[2], nd("Dropout", ["h2"] + extra, ["h3", "mask"]), nd("MatMul", ["h3", "W2"], ["y"])]
go("dropout-training-true", model(dr(["ratio", "tm"]), xin, yout, ins + [I("ratio", np.float32(.5)), I("tm", np.bool_(True))]), drop_ref, src="onnx#2568 Dropout with training_mode")
go("dropout-ratio-as-graph-input", model(dr(["ratio", "tm"]), xin + [V("ratio", []), V("tm", [], TP.BOOL)], yout, ins), drop_ref)
go("dropout-no-training-input", model(dr([]), xin, yout, ins), mlp_ref)
go("dropout-opset6-is_test", model([mlp[0], mlp[1], mlp[2], nd("Dropout", ["h2"], ["h3"], is_test=0, ratio=.5), nd("MatMul", ["h3", "W2"], ["y"])], xin, yout, ins, opset=6, ir=3, extra_inputs=[V("W1", [16, 8]), V("b1", [8]), V("W2", [8, 4])]) if False else model([nd("MatMul", ["x", "W1"], ["h"]), nd("Relu", ["h"], ["h2"]), nd("Dropout", ["h2"], ["h3"], is_test=0, ratio=.5), nd("MatMul", ["h3", "W2"], ["y"])], xin, yout, [I("W1", W1), I("W2", W2)], opset=6, ir=3, extra_inputs=[V("W1", [16, 8]), V("W2", [8, 4])]), None)
def sub(name, nodes, outs, ins=(), inits=()): return H.make_graph(nodes, name, list(ins), list(outs), list(inits))
yes = sub("t", [nd("MatMul", ["x", "W1"], ["a"])], [V("a", [4, 8])]); no = sub("e", [nd("Neg", ["zz"], ["b"])], [V("b", [4, 8])], inits=[I("zz", f32(4, 8))])
go("If-constant-condition", model([nd("If", ["c"], ["h"], then_branch=yes, else_branch=no)] + mlp[1:], xin, yout, ins + [I("c", np.bool_(True))]), mlp_ref, src="onnxruntime#10517 #11268 If")
go("If-on-a-shape", model([nd("Shape", ["x"], ["sh"]), nd("Gather", ["sh", "i1"], ["d"]), nd("Equal", ["d", "c16"], ["c"]), nd("If", ["c"], ["h"], then_branch=yes, else_branch=no)] + mlp[1:], xin, yout, ins + [I("i1", np.int64(1)), I("c16", np.int64(16))]), mlp_ref, src="onnxruntime#10517 (silero-vad)")
go("If-on-data", model([nd("ReduceSum", ["x"], ["s"], keepdims=0), nd("Greater", ["s", "z0"], ["c"]), nd("If", ["c"], ["h"], then_branch=yes, else_branch=no)] + mlp[1:], xin, yout, ins + [I("z0", np.float32(0))]), None, src="onnxruntime#10517")
Wr = f32(8, 8)
body = sub("b", [nd("MatMul", ["hin", "Wr"], ["t1"]), nd("Add", ["t1", "xt"], ["t2"]), nd("Tanh", ["t2"], ["hout"]), nd("Identity", ["hout"], ["yo"])], [V("hout", [4, 8]), V("yo", [4, 8])], [V("hin", [4, 8]), V("xt", [4, 8])])
def scan_ref(names, bufs, args):
    w, q, v = T(W1).requires_grad_(), T(Wr).requires_grad_(), T(W2).requires_grad_(); xs = args[0] @ w; h = torch.zeros(4, 8); L = 0
    ys = []
    for t in range(xs.shape[0]): h = torch.tanh(h @ q + xs[t]); ys.append(h)
    (2 * (torch.stack(ys) @ v).square().sum()).backward(); return close(names, {"W1": w.grad, "Wr": q.grad, "W2": v.grad})
go("Scan-rnn", model([nd("MatMul", ["x", "W1"], ["xs"]), nd("Scan", ["h0", "xs"], ["hT", "ys"], body=body, num_scan_inputs=1), nd("MatMul", ["ys", "W2"], ["y"])], [V("x", [5, 4, 16])], [V("y", [5, 4, 4])], [I("W1", W1), I("Wr", Wr), I("W2", W2), I("h0", np.zeros((4, 8), np.float32))]), scan_ref, src="onnxruntime#26194 #26787 Scan")
lb = sub("l", [nd("MatMul", ["hin", "Wr"], ["t1"]), nd("Tanh", ["t1"], ["hout"]), nd("Identity", ["cin"], ["cout"])], [V("cout", [], TP.BOOL), V("hout", [4, 8])], [V("it", [], TP.INT64), V("cin", [], TP.BOOL), V("hin", [4, 8])])
def loop_ref(names, bufs, args):
    w, q = T(W1).requires_grad_(), T(Wr).requires_grad_(); h = args[0] @ w
    for _ in range(3): h = torch.tanh(h @ q)
    (2 * h.square().sum()).backward(); return close(names, {"W1": w.grad, "Wr": q.grad})
go("Loop-fixed-trips", model([nd("MatMul", ["x", "W1"], ["h"]), nd("Loop", ["n", "c", "h"], ["y"], body=lb)], xin, [V("y", [4, 8])], [I("W1", W1), I("Wr", Wr), I("n", np.int64(3)), I("c", np.bool_(True))]), loop_ref, src="onnxruntime#26194 Loop")
rz = [nd("Conv", ["x", "Wc"], ["c"], pads=[1, 1, 1, 1]), nd("Resize", ["c", "", "sc"], ["y"], mode="linear", coordinate_transformation_mode="half_pixel")]
def rz_ref(names, bufs, args): w = T(Wc).requires_grad_(); (2 * F.interpolate(F.conv2d(args[0], w, padding=1), scale_factor=2., mode="bilinear").square().sum()).backward(); return close(names, {"Wc": w.grad})
go("Resize-linear", model(rz, [V("x", [4, 3, 8, 8])], [V("y", [4, 6, 16, 16])], [I("Wc", Wc), I("sc", np.array([1, 1, 2, 2], np.float32))]), rz_ref, xi, src="onnxruntime#16866 Resize has no gradient")
nhwc = [nd("Transpose", ["x"], ["xt"], perm=[0, 3, 1, 2]), nd("Conv", ["xt", "Wc"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]), nd("Transpose", ["c"], ["ct"], perm=[0, 2, 3, 1]), nd("Add", ["ct", "be"], ["cb"]), nd("Clip", ["cb", "lo", "hi"], ["y"])]
def nh_ref(names, bufs, args): w, b = T(Wc).requires_grad_(), T(be).requires_grad_(); c = F.conv2d(F.pad(args[0].permute(0, 3, 1, 2), (0, 1, 0, 1)), w, stride=2).permute(0, 2, 3, 1) + b; (2 * c.clamp(0, 6).square().sum()).backward(); return close(names, {"Wc": w.grad, "be": b.grad})
go("tf-style-NHWC-SAME-relu6", model(nhwc, [V("x", [4, 8, 8, 3])], [V("y", [4, 4, 4, 6])], [I("Wc", Wc), I("be", be), I("lo", np.float32(0)), I("hi", np.float32(6))]), nh_ref, [xi[0].permute(0, 2, 3, 1).contiguous()], src="tf2onnx")
go("two-weights-one-initializer (tied)", model([nd("MatMul", ["x", "W1"], ["h"]), nd("Transpose", ["W1"], ["W1t"], perm=[1, 0]), nd("MatMul", ["h", "W1t"], ["y"])], xin, [V("y", [4, 16])], [I("W1", W1)]), lambda n, b, a: (lambda w: ((2 * (a[0] @ w @ w.t()).square().sum()).backward(), close(n, {"W1": w.grad}))[1])(T(W1).requires_grad_()))
go("Gemm-transB-alpha-beta", model([nd("Gemm", ["x", "G", "b1"], ["y"], transB=1, alpha=.5, beta=2.)], xin, [V("y", [4, 8])], [I("G", W1.T.copy()), I("b1", b1)]), lambda n, b, a: (lambda w, c: ((2 * (.5 * a[0] @ w.t() + 2 * c).square().sum()).backward(), close(n, {"G": w.grad, "b1": c.grad}))[1])(T(W1.T.copy()).requires_grad_(), T(b1).requires_grad_()))
R4 = lambda: f32(1, 32, 8)
lw, lr, lbb = f32(1, 32, 16), f32(1, 32, 8), f32(1, 64)
def lstm_ref(names, bufs, args):
    w, r, b = T(lw).requires_grad_(), T(lr).requires_grad_(), T(lbb).requires_grad_(); h = c = torch.zeros(4, 8); ys = []
    for x in args[0]:
        i, o, f, g = (x @ w[0].t() + h @ r[0].t() + b[0, :32] + b[0, 32:]).chunk(4, 1); c = f.sigmoid() * c + i.sigmoid() * g.tanh(); h = o.sigmoid() * c.tanh(); ys.append(h)
    (2 * torch.stack(ys)[:, None].square().sum()).backward(); return close(names, {"Wl": w.grad, "Rl": r.grad, "Bl": b.grad})
go("LSTM", model([nd("LSTM", ["x", "Wl", "Rl", "Bl"], ["y"], hidden_size=8)], [V("x", [5, 4, 16])], [V("y", [5, 1, 4, 8])], [I("Wl", lw), I("Rl", lr), I("Bl", lbb)]), lstm_ref, src="onnxruntime#15034 LSTM gradient")
go("training-graph-of-ort (YieldOp)", model(mlp + [H.make_node("YieldOp", ["y"], ["dy"], domain="com.microsoft", full_shape_outputs=[0])], xin, [V("dy", [4, 4])], ins, domains=("com.microsoft",)), None, check=False, src="a training_model.onnx given in place of the model")
go("ai.onnx.preview.training Gradient", model([nd("Mul", ["x", "W"], ["z"]), H.make_node("Gradient", ["x", "W"], ["y", "dW"], domain="ai.onnx.preview.training", xs=["x", "W"], y="z")], xin, yout, [I("W", f32(4, 16))], domains=("ai.onnx.preview.training",)), None, check=False, src="onnxruntime#13057")
go("float16-model", model(mlp, [V("x", [4, 16], TP.FLOAT16)], [V("y", [4, 4], TP.FLOAT16)], [I("W1", W1.astype(np.float16)), I("b1", b1.astype(np.float16)), I("W2", W2.astype(np.float16))]), None)
go("QDQ-int8-weights", model([nd("DequantizeLinear", ["Wq", "s", "zp"], ["W1d"])] + [nd("MatMul", ["x", "W1d"], ["h"])] + mlp[1:], xin, yout, [I("Wq", (W1 * 100).clip(-127, 127).astype(np.int8)), I("s", np.float32(.01)), I("zp", np.int8(0)), I("b1", b1), I("W2", W2)]), None)
go("loss-inside SoftmaxCrossEntropyLoss", model(mlp + [nd("SoftmaxCrossEntropyLoss", ["y", "lab"], ["loss"], reduction="mean", ignore_index=-1)], xin + [V("lab", [4], TP.INT64)], [V("loss", [])], ins), lambda n, b, a: (lambda w: ((2 * F.cross_entropy(torch.relu(a[0] @ w[0] + w[1]) @ w[2], a[1], ignore_index=-1).square()).backward(), close(n, dict(zip(("W1", "b1", "W2"), (t.grad for t in w)))))[1])([T(a_).requires_grad_() for a_ in (W1, b1, W2)]), [torch.randn(4, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([0, -1, 2, 3])], src="onnxruntime loss in the graph")
go("unused-initializer-and-output", model(mlp, xin, yout + [V("h1", [4, 8])], ins + [I("unused", f32(3))]), None)
go("empty-optional-and-constant-of-shape", model([nd("Shape", ["x"], ["s"]), nd("ConstantOfShape", ["s"], ["z"]), nd("Add", ["x", "z"], ["x1"]), nd("MatMul", ["x1", "W1"], ["h"])] + mlp[1:], xin, yout, ins), mlp_ref)
go("function-of-the-model (local function)", (lambda m: (m.functions.append(H.make_function("my", "Dense", ["a", "w", "b"], ["o"], [nd("MatMul", ["a", "w"], ["m"]), nd("Add", ["m", "b"], ["o"])], [H.make_opsetid("", 17)])), m)[1])(model([H.make_node("Dense", ["x", "W1", "b1"], ["h1"], domain="my")] + mlp[2:], xin, yout, ins, domains=("my",))), mlp_ref)
