"""A GPT-2 trained by `transformers.Trainer` within a memory budget, to the bits of eager.

    python examples/train_transformers.py [--bf16]

Needs transformers and accelerate. Trains twice, planned and in eager: gradient accumulation,
clipping, evaluation, and a run that goes on from a checkpoint.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from remat_compile.hf import Callback

BF16 = "--bf16" in sys.argv[1:]
BATCH = 4


def new_model() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=61))


def examples() -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(61, (18, 24), generator=torch.Generator().manual_seed(3))
    return [{"input_ids": row, "labels": row.clone()} for row in tokens]


def train(
    model: Any, folder: str, checkpoint: str | None, callbacks: list[Any]
) -> list[dict[str, float]]:
    arguments = TrainingArguments(
        folder,
        max_steps=6,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        logging_steps=1,
        bf16=BF16,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = examples()
    trainer = Trainer(
        model, arguments, train_dataset=data, eval_dataset=data[:6], callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    seen = ("loss", "eval_loss", "grad_norm")
    return [{key: log[key] for key in seen if key in log} for log in trainer.state.log_history]


def main() -> int:
    same = True
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        for folder in (None, "checkpoint-3"):
            models = new_model(), new_model()
            logs = [
                train(module, path, folder and f"{path}/{folder}", callbacks)
                for module, path, callbacks in (
                    (models[0], ours, [Callback(activation_budget="80%", planner="dtr")]),
                    (models[1], theirs, []),
                )
            ]
            pairs = zip(*(model.parameters() for model in models), strict=True)
            same &= logs[0] == logs[1] and all(torch.equal(a, b) for a, b in pairs)
    print(f"bit-equal to eager: {same}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
