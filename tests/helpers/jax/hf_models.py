"""Tiny models of `transformers` with random weights, in train mode, seeded.

`HF_MODELS[name](dtype, dropout, ids)` gives a module and its arguments, token ids of that
shape among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers: Any = pytest.importorskip("transformers")

Sample = tuple[nn.Module, tuple[Any, ...], dict[str, Tensor]]
VOCAB = 61
SMALL = {"vocab_size": VOCAB, "use_cache": False}
LAYERS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


Shape = tuple[int, int]
IDS: Shape = (2, 8)


def _ids(shape: Shape) -> Tensor:
    return torch.randint(0, VOCAB, shape)


def _both(shape: Shape) -> dict[str, Tensor]:
    """What an encoder and a decoder read."""
    return {"input_ids": _ids(shape), "decoder_input_ids": _ids(shape)}


def _bert_like(p: float) -> dict[str, Any]:
    """Shapes and dropouts, by the names that BERT gave them."""
    dropouts = {"hidden_dropout_prob": p, "attention_probs_dropout_prob": p}
    return {**LAYERS, **dropouts, "num_attention_heads": 2}


def _gpt2(p: float, shape: Shape) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.GPT2Config(
        **SMALL,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        attn_pdrop=p,
        embd_pdrop=p,
        resid_pdrop=p,
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": _ids(shape)}


def _llama(p: float, shape: Shape) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.LlamaConfig(
        **SMALL,
        **LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        attention_dropout=p,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": _ids(shape)}


def _t5(p: float, shape: Shape) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.T5Config(
        **SMALL, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=p
    )
    ids = _both(shape)
    return transformers.T5ForConditionalGeneration(config), ids


def _bart(p: float, shape: Shape) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.BartConfig(
        **SMALL,
        d_model=32,
        max_position_embeddings=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        dropout=p,
        attention_dropout=p,
        activation_dropout=p,
    )
    ids = _both(shape)
    return transformers.BartForConditionalGeneration(config), ids


def _bert(p: float, shape: Shape) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=16, **_bert_like(p))
    return transformers.BertForMaskedLM(config), {"input_ids": _ids(shape)}


def _vit(p: float, shape: Shape) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.ViTConfig(image_size=16, patch_size=4, **_bert_like(p))
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 16, 16)
    }


def _convnext(p: float, shape: Shape) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.ConvNextConfig(
        num_stages=4,
        hidden_sizes=[8, 16, 32, 64],
        depths=[1, 1, 2, 1],
        image_size=32,
        drop_path_rate=p,
    )
    return transformers.ConvNextForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 32, 32)
    }


def _exportable(module: nn.Module) -> None:
    """BART's encoder and decoder drop whole layers by the value of a random number, a
    branch on data that `torch.export` refuses. With the probability 0 that the
    configuration sets, eval mode of these two modules (not of their layers) skips it,
    and with it the dropout right after the embeddings."""
    for part in module.modules():
        if hasattr(part, "layerdrop"):
            part.training = False


def _build(
    make: Callable[[float, Shape], tuple[nn.Module, dict[str, Tensor]]],
    dtype: torch.dtype,
    dropout: bool = True,
    ids: Shape = IDS,
) -> Sample:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module, kwargs = make(0.1 if dropout else 0.0, ids)
    module = module.to(dtype).train()
    _exportable(module)
    cast = {k: v.to(dtype) if v.is_floating_point() else v for k, v in kwargs.items()}
    return module, (), cast


def _factory(
    make: Callable[[float, Shape], tuple[nn.Module, dict[str, Tensor]]],
) -> Callable[..., Sample]:
    return lambda dtype, dropout=True, ids=IDS: _build(make, dtype, dropout, ids)


HF_MODELS: dict[str, Callable[..., Sample]] = {
    "gpt2": _factory(_gpt2),
    "llama": _factory(_llama),
    "t5": _factory(_t5),
    "bart": _factory(_bart),
    "bert": _factory(_bert),
    "vit": _factory(_vit),
    "convnext": _factory(_convnext),
}
