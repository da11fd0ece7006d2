"""The models that the tests train: small, seeded, and of every shape that matters.

`MODELS[name](dtype)` builds a module in train mode with its sample arguments. A name
with `-loss` returns a scalar; without it the caller computes the loss from the outputs.
Every factory seeds itself and leaves the caller's random state alone, so two calls give
equal parameters and inputs. Sizes are chosen so that a step takes a few milliseconds and
activations, not parameters, are most of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.networks.convolutions import ResNet, UNet
from helpers.networks.linear import MLP, TwoInTwoOut
from helpers.networks.llama import Llama
from helpers.networks.transformers import GPT, EncoderDecoder, ViT

Sample = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
Factory = Callable[[torch.dtype], Sample]
LossFn = Callable[..., Tensor]


class WithLoss(nn.Module):
    """The model and its loss; the last argument is the target."""

    def __init__(self, model: nn.Module, loss: LossFn) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args: Tensor) -> Tensor:
        return self.loss(self.model(*args[:-1]), args[-1])


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def pair_loss(outputs: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return F.smooth_l1_loss(outputs[0], target) + outputs[1].exp().mean()


def _ids(*shape: int) -> Tensor:
    return torch.randint(0, 61, shape)


def _build(
    make: Callable[[], nn.Module],
    inputs: Callable[[], tuple[Tensor, ...]],
    dtype: torch.dtype,
    *,
    loss: LossFn | None = None,
    target: Callable[[], Tensor] | None = None,
    seed: int = 7,
) -> Sample:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make()
        args = inputs()
        if loss is not None and target is not None:
            module = WithLoss(module, loss)
            args = (*args, target())
    cast = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    return module.to(dtype).train(), cast, {}


def _image(batch: int, side: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(batch, 3, side, side),)


def _classes(batch: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, 10, (batch,))


_GPT_DROP = partial(GPT, attn_drop=0.1, drop=0.1)
_TABLE: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "mlp": (MLP, lambda: (torch.randn(64, 16),)),
    "gpt": (_GPT_DROP, lambda: (_ids(4, 16),)),
    "llama": (Llama, lambda: (_ids(4, 16),)),
    "resnet": (ResNet, _image(4, 32)),
    "unet": (UNet, _image(2, 16)),
    "encdec": (partial(EncoderDecoder, drop=0.1), lambda: (_ids(8, 10), _ids(8, 12))),
    "vit": (ViT, _image(4, 16)),
    "two": (TwoInTwoOut, lambda: (torch.randn(64, 12), torch.randn(64, 20))),
}
_LOSSES: dict[str, tuple[LossFn, Callable[[], Tensor]]] = {
    "mlp": (F.mse_loss, lambda: torch.randn(64, 8)),
    "gpt": (token_loss, lambda: _ids(4, 16)),
    "llama": (token_loss, lambda: _ids(4, 16)),
    "resnet": (F.cross_entropy, _classes(4)),
    "unet": (F.binary_cross_entropy_with_logits, lambda: torch.rand(2, 2, 16, 16)),
    "encdec": (token_loss, lambda: _ids(8, 12)),
    "vit": (F.cross_entropy, _classes(4)),
    "two": (pair_loss, lambda: torch.randn(64, 6)),
}


def _two_with_input_grad(dtype: torch.dtype) -> Sample:
    """The first input requires a gradient; the second goes by keyword."""
    module, (x, y), _ = _build(*_TABLE["two"], dtype)
    return module, (x.requires_grad_(),), {"y": y}


BASE: tuple[str, ...] = tuple(_TABLE)
"""The eight models, the loss computed by the caller."""

LOSS_INSIDE: tuple[str, ...] = tuple(f"{name}-loss" for name in _TABLE)
"""The same eight, each returning its loss."""

MODELS: Mapping[str, Factory] = {
    **{name: partial(_build, *_TABLE[name]) for name in _TABLE},
    **{
        f"{name}-loss": partial(_build, *_TABLE[name], loss=loss, target=target)
        for name, (loss, target) in _LOSSES.items()
    },
    # Attention without dropout runs another kernel than attention with it.
    "gpt-p0": partial(_build, GPT, _TABLE["gpt"][1]),
    "gpt-flash": partial(_build, partial(GPT, drop=0.1), _TABLE["gpt"][1]),
    "two-inputgrad": _two_with_input_grad,
}

SMALL: Mapping[str, Factory] = {
    "mlp": partial(_build, partial(MLP, depth=3), _TABLE["mlp"][1]),
    "gpt": partial(_build, partial(_GPT_DROP, layers=1), _TABLE["gpt"][1]),
    "gpt-p0": partial(_build, partial(GPT, layers=1), _TABLE["gpt"][1]),
    "gpt-flash": partial(_build, partial(GPT, layers=1, drop=0.1), _TABLE["gpt"][1]),
    "llama": partial(_build, partial(Llama, layers=1), _TABLE["llama"][1]),
    "vit": partial(_build, partial(ViT, layers=1), _TABLE["vit"][1]),
    "resnet": partial(_build, partial(ResNet, blocks=1), _TABLE["resnet"][1]),
    "resnet-loss": partial(
        _build,
        partial(ResNet, blocks=1),
        _TABLE["resnet"][1],
        loss=F.cross_entropy,
        target=_classes(4),
    ),
    "two": partial(_build, partial(TwoInTwoOut, depth=2), _TABLE["two"][1]),
}
"""The same with one block: for what does not depend on how many there are."""

FACTORIES: Mapping[str, Factory] = {
    **MODELS,
    **{f"small-{name}": make for name, make in SMALL.items()},
}
"""Both, those with one block as `small-NAME`."""

VARIANTS: tuple[str, ...] = tuple(n for n in MODELS if n not in BASE + LOSS_INSIDE)


def no_dropout(module: nn.Module) -> nn.Module:
    """Sets every dropout probability to 0, in place: what an ONNX file can reproduce."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    return module


def export_onnx(name: str, path: Path, dtype: torch.dtype = torch.float32) -> Sample:
    """Writes the model without dropout to `path` as ONNX, every parameter an initialiser.

    Returns the module that was exported (in train mode) with its sample arguments.
    `optimize=False` keeps the exporter from folding, transposing and merging weights.
    """
    module, args, kwargs = FACTORIES[name](dtype)
    no_dropout(module)
    names = [f"input_{i}" for i in range(len(args))] + list(kwargs)
    torch.onnx.export(
        module,
        args,
        str(path),
        kwargs=kwargs,
        input_names=names,
        dynamo=True,
        optimize=False,
        external_data=False,
        verbose=False,
    )
    return module.train(), args, kwargs
