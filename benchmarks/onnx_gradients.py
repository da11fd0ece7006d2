"""Gradients of exported transformers against the original PyTorch models.

    python benchmarks/onnx_gradients.py [--write docs/notes/onnx_gradients.md] [NAME ...]

Each architecture is made from a small configuration with random weights, exported with
`export_trainable`, read back, and run forwards and backwards beside the original in float32.
Needs the package `transformers`, which the tests do not.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from remat_compile.capture.onnx import build_module, export_trainable

LIMIT = 1e-6
"""Largest difference, as a part of the largest gradient (or output) of the model."""

TEXT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "use_cache": False}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}
ENCODER_DECODER = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "use_cache": False,
}
SEGFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 8, 16, 16],
    "num_attention_heads": [1, 1, 2, 2],
    "decoder_hidden_size": 16,
    "sr_ratios": [2, 2, 1, 1],
}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
GPT2 = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32, "use_cache": False}

ARCHITECTURES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "albert": ("AlbertForMaskedLM", "text", {**TEXT, "embedding_size": 16}),
    "bart": ("BartForConditionalGeneration", "pair", ENCODER_DECODER),
    "bert": ("BertForMaskedLM", "text", TEXT),
    "distilbert": (
        "DistilBertForMaskedLM",
        "text",
        {"vocab_size": 61, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    ),
    "electra": ("ElectraForMaskedLM", "text", {**TEXT, "embedding_size": 16}),
    "gemma": ("GemmaForCausalLM", "text", {**GROUPED, "head_dim": 8}),
    "gpt2": ("GPT2LMHeadModel", "text", {**GPT2, "use_cache": False}),
    "gpt-neox": ("GPTNeoXForCausalLM", "text", {**TEXT, "use_cache": False}),
    "llama": ("LlamaForCausalLM", "text", GROUPED),
    "mistral": ("MistralForCausalLM", "text", GROUPED),
    "opt": ("OPTForCausalLM", "text", {**TEXT, **OPT}),
    "phi": ("PhiForCausalLM", "text", {**TEXT, "use_cache": False}),
    "qwen2": ("Qwen2ForCausalLM", "text", GROUPED),
    "resnet": ("ResNetForImageClassification", "image", RESNET),
    "roberta": ("RobertaForMaskedLM", "text", {**TEXT, "pad_token_id": 1}),
    "segformer": ("SegformerForSemanticSegmentation", "image", SEGFORMER),
    "t5": ("T5ForConditionalGeneration", "pair", T5),
    "vit": ("ViTForImageClassification", "image", IMAGE),
}


class Positional(nn.Module):
    """A transformers model with its inputs in order and its first result alone."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Tensor:
        given = dict(zip(self.names, values, strict=True))
        result: Tensor = self.model(**given, return_dict=False)[0]
        return result


def make(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model, in eval mode (no dropout), and its arguments."""
    import transformers

    torch.manual_seed(0)
    kind, inputs, options = ARCHITECTURES[name]
    model_class = getattr(transformers, kind)
    config = model_class.config_class(**options)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)  # so that equal biases cannot hide a mistake
    ids = torch.randint(3, 61, (2, 9))
    ids[0, -2:] = int(getattr(config, "pad_token_id", 0) or 0)  # the padding row is read
    match inputs:
        case "text":
            return Positional(model, ("input_ids",)), (ids,)
        case "pair":
            return Positional(model, ("input_ids", "decoder_input_ids")), (ids, ids[:, :5])
        case _:
            side = 64 if name in ("segformer", "resnet") else 16
            return Positional(model, ("pixel_values",)), (torch.randn(2, 3, side, side),)


def compare(module: nn.Module, args: tuple[Tensor, ...], folder: Path) -> tuple[float, float, int]:
    """Largest differences of outputs and gradients, as parts of the largest; how many gradients."""
    export_trainable(module, args, folder / "m.onnx")
    names = [value.name for value in onnx.load(folder / "m.onnx").graph.input]
    arrays: dict[str, Any] = {n: a.numpy() for n, a in zip(names, args, strict=True)}
    np.savez(folder / "s.npz", **arrays)
    built = build_module(folder / "m.onnx", sample=folder / "s.npz").module
    wanted, got = module(*args), built(*args)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    torch.autograd.backward([wanted], [weights])
    torch.autograd.backward([got], [weights])
    parameters = dict(built.named_parameters(remove_duplicate=False))
    largest, worst, count = 0.0, 0.0, 0
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            continue
        count += 1
        grad = parameters[name].grad
        assert grad is not None, f"{name} has no gradient"
        worst = max(worst, float((grad - parameter.grad).abs().max()))
        largest = max(largest, float(parameter.grad.abs().max()))
    output = float((wanted - got).abs().max() / wanted.abs().max())
    return output, worst / largest, count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    import transformers

    lines = [
        "# Gradients of exported transformers against the originals",
        "",
        f"Written by `benchmarks/onnx_gradients.py` on {datetime.date.today()}: transformers "
        f"{transformers.__version__}, torch {torch.__version__}, onnx {onnx.__version__}, float32, "
        "on the CPU. Differences are parts of the model's largest output and gradient.",
        "",
        "| model | gradients | output differs by | gradient differs by |",
        "|---|---|---|---|",
    ]
    failed = 0
    for name in given.names or ARCHITECTURES:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                output, gradient, count = compare(*make(name), Path(folder))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            lines.append(f"| {name} | – | {type(error).__name__}: {reason} | – |")
            failed += 1
        else:
            failed += gradient > LIMIT
            lines.append(f"| {name} | {count} | {output:.1e} | {gradient:.1e} |")
        print(lines[-1], f"{time.monotonic() - began:.0f} s", flush=True)
    if given.write is not None:
        given.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
