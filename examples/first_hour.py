"""The first hour: every step from a model to a training run that fits, each as it is typed.

    python examples/first_hour.py

Works in a folder of its own, prints each command with its answer, and ends with 1 at the first
that fails. The `Trainer` with LoRA runs where transformers, accelerate and peft are installed.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [m for _ in range(6) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
        self.layers = nn.Sequential(*layers, nn.Linear(64, 1))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


def make():
    torch.manual_seed(0)
    return Net(), (torch.randn(256, 64), torch.randn(256, 1))


def train():
    model, args = make()
    return model, args, torch.optim.AdamW(model.parameters(), fused=True)


if __name__ == "__main__":
    model, args = make()
    torch.onnx.export(model, args, "net.onnx", dynamo=True, optimize=False, verbose=False)
"""

LORA = """\
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from remat_compile.hf import Callback

torch.manual_seed(0)
config = LlamaConfig(num_hidden_layers=2, hidden_size=32, intermediate_size=48, vocab_size=61,
                     num_attention_heads=2, num_key_value_heads=2)
adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = get_peft_model(LlamaForCausalLM(config), adapters)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(61, (16, 24))]
arguments = TrainingArguments("out", max_steps=3, per_device_train_batch_size=4, use_cpu=True,
                              report_to=[], disable_tqdm=True, save_strategy="no")
plan = Callback(activation_budget="80%", planner="dtr")
Trainer(model, arguments, train_dataset=rows, callbacks=[plan]).train()
print("trained within the budget")
"""

WALK = (
    "remat-compile fit net.py:make --device t4 -q",
    "remat-compile net.py:make -o plan.fbir --activation-budget 60% --planner dtr -q",
    "remat-compile run plan.fbir --trust-source -q",
    "python net.py",
    "remat-compile net.onnx -o onnx.fbir --activation-budget 60% --planner dtr -q",
    "remat-compile run onnx.fbir -q",
    "remat-compile net.py:train -o step.fbir --budget 80% --planner zero-offload --link 10GB/s -q",
    "remat-compile run step.fbir --steps 3 --trust-source -q",
    "remat-compile net.py:make -o step.py --emit torch --activation-budget 60% --planner dtr -q",
    "remat-compile run plan.fbir --trust-source --values step.pt -q",
    "python step.py",
)


def main() -> int:
    walk = list(WALK)
    if all(map(find_spec, ("transformers", "accelerate", "peft"))):
        walk.append("python lora.py")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "net.py").write_text(NET)
        Path(folder, "lora.py").write_text(LORA)
        for command in walk:
            print(f"$ {command}", flush=True)
            program, *arguments = shlex.split(command)
            start = ["-m", "remat_compile"] if program == "remat-compile" else []
            done = subprocess.run([sys.executable, *start, *arguments], cwd=folder)
            if done.returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
