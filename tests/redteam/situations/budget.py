from _harness import *  # noqa

SRC = "pytorch#197838 lower budgets that take more; Megatron#1300 #120381 recompute that takes more than without; DeepSpeed#522 offload that does nothing"
import json, subprocess, tempfile, pathlib
from transformers import LlamaConfig, LlamaForCausalLM
W = pathlib.Path(tempfile.mkdtemp()); (W / "net.py").write_text('''
import torch
from transformers import LlamaConfig, LlamaForCausalLM
def make():
    torch.manual_seed(0)
    m = LlamaForCausalLM(LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=512, use_cache=False)).train()
    i = torch.randint(0, 512, (4, 64)); return m, (), {"input_ids": i, "labels": i}
''')
exe = str(pathlib.Path(sys.executable).parent / "remat-compile"); rows = []
env = {**os.environ, "REMAT_COMPILE_CACHE": str(W / "cache"), "OMP_NUM_THREADS": "1"}
for b in (sys.argv[1:] or ["20%", "30%", "50%", "100%"]):
    t = time.time(); f = W / f"p{b[:-1]}.fbir"
    r = subprocess.run([exe, str(W / "net.py") + ":make", "-o", str(f), "--activation-budget", b, "--planner", "dtr", "--time-limit", "8", "-q", "--threads", "1"], capture_output=True, text=True, env=env)
    if r.returncode: rows.append((b, None)); print("REFUSED", b, text_of(r.stderr)[:500], f"{time.time()-t:.0f}s", flush=True); continue
    r = subprocess.run([exe, "run", str(f), "--trust-source", "--format", "json"], capture_output=True, text=True, env=env)
    try: j = json.loads(r.stdout); q = j["report"]; rows.append((b, j)); print(b, "proven", j["proven_bytes"], "measured", q["measured_bytes"], "eager", q["eager_bytes"], "time", round(q["time_s"], 4), "eager", round(q["eager_time_s"], 4), "bit_equal", q["bit_equal"], f"{time.time()-t:.0f}s", flush=True)
    except Exception as e: rows.append((b, None)); print("CRASH", b, r.returncode, text_of(r.stdout + r.stderr)[-600:], flush=True)
ok = [(b, j) for b, j in rows if j]
over = [b for b, j in ok if j["report"]["measured_bytes"] > j["proven_bytes"]]; mono = all(x[1]["report"]["measured_bytes"] <= y[1]["report"]["measured_bytes"] for x, y in zip(ok, ok[1:]))
print(f"{'OK' if not over and mono else 'OVER ' + str(over) if over else 'NOT MONOTONE'} | budget/sweep of llama | {[(b, j['report']['measured_bytes']) for b, j in ok]} refused {[b for b, j in rows if not j]} | {SRC}")
