"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    """Exit code and both streams of one run."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


def chain_text(layers: int = 8, width: int = 1000) -> str:
    """A chain whose every layer keeps `width` bytes; parameters have a tenth of them."""
    storages = [f"  %x0 : input u8[{width}] bytes {width}"]
    forward, backward, binding = [], [], ['  arg "args[0]" = %x0']
    for i in range(layers):
        kind = "output" if i == layers - 1 else "act"
        storages += [
            f"  %w{i} : param u8[{width // 10}] bytes {width // 10}",
            f"  %dw{i} : param_grad u8[{width // 10}] bytes {width // 10}",
            f"  %x{i + 1} : {kind} u8[{width}] bytes {width}",
        ]
        forward.append(
            f"  F{i}: fwd %x{i + 1} = toy.op.default(%x{i}, %w{i}) "
            f'time 10us at model.py:{i + 1} "layer{i}"'
        )
        binding.append(f'  param "w{i}" = %w{i} grad %dw{i}')
    storages.append(f"  %d{layers} : tangent u8[{width}] bytes {width}")
    for i in reversed(range(layers)):
        results = f"%dw{i}" if i == 0 else f"%dw{i}, %d{i}"
        if i > 0:
            storages.append(f"  %d{i} : grad u8[{width}] bytes {width}")
        backward.append(
            f"  B{i}: bwd {results} = toy.op.default(%x{i}, %w{i}, %d{i + 1}) of F{i} time 20us"
        )
    loss = f"  L: loss %d{layers} = loss(%x{layers})"
    binding += [f"  result %x{layers} tangent %d{layers}", "  grads fresh"]
    graph = "\n".join(["graph @chain {", *storages, *forward, loss, *backward, "}"])
    return f"fbir 1\n\n{graph}\n\n" + "\n".join(["bind {", *binding, "}", ""])
