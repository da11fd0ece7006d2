"""The page of `benchmarks/models.py`: a table of architectures, and what they come to."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from _beside_eager import Outcome

KNOWN = {
    "hubert": "its masks are NumPy's, which TorchDynamo draws with PyTorch",
    "nystromformer": "its attention adds a mask of all positions to scores of landmarks; in eager "
    "transformers leaves out a mask of ones, under any tracing it does not",
    "wav2vec2": "its masks are NumPy's, which TorchDynamo draws with PyTorch",
}
"""Why bits differ or a model is refused, where that was looked into."""


def row(o: Outcome) -> str:
    share = of_eager = "–"
    if o.bytes is not None:
        share = f"{o.bytes['measured'] / o.bytes['proven']:.3f}"
        of_eager = f"{o.bytes['ours'] / o.bytes['eager']:.2f}"
    bits = f"{o.tensors} equal" if o.equal else "–"
    if o.different:
        bits = f"**{len(o.different)} of {o.tensors} differ**, {o.different[0]} first"
        if o.same_as:
            bits += f"; all equal to PyTorch's own `{o.same_as}`"
    way = {"late": "out of time", "error": "**error**"}.get(o.way, o.way)
    codes = ", ".join(o.codes)
    known = "" if o.equal else KNOWN.get(o.name, "")
    parts = (known, o.reason.replace("|", "/")[:240], codes)
    note = "; ".join(part for part in parts if part)
    cells = (
        o.name,
        o.origin,
        f"{o.parameters:,}",
        f"{o.time_s:.0f} s",
        way,
        o.budget or "–",
        share,
        of_eager,
    )
    return "| " + " | ".join((*cells, bits, note)) + " |"


def page(outcomes: Sequence[Outcome], versions: Sequence[str], left_out: int) -> str:
    """`left_out` is how many architectures there are beside those."""
    equal = sum(o.equal for o in outcomes)
    whole = sum(o.equal and o.way == "whole" for o in outcomes)
    silent = [o.name for o in outcomes if o.silent]
    shares = sorted(o.bytes["measured"] / o.bytes["proven"] for o in outcomes if o.bytes)
    counted = (
        f"**{equal} of {len(outcomes)} are equal in every bit** ({whole} as one planned step, "
        f"{equal - whole} by regions); {len(outcomes) - equal} are not, with what is known of it "
        "in their rows. "
        f"Differences without a reason: {', '.join(silent) or 'none'}."
    )
    counted += f" {left_out} more in `benchmarks/zoo` were not run." if left_out else ""
    if shares:
        counted += (
            f" Measured over proven: {shares[0]:.3f} to {shares[-1]:.3f}, "
            f"median {shares[len(shares) // 2]:.3f}."
        )
    head = "| model | from | parameters | time | status | budget | measured/proven | of eager | "
    head += "bits | note |"
    lines = [
        "# Architectures, trained beside themselves",
        "",
        f"Written by `benchmarks/models.py` on {datetime.date.today()} with "
        f"{', '.join(versions)}, float32, on the CPU, one thread.",
        "",
        "Each model comes from its own constructor with a small configuration and random weights, "
        "in train mode, with nothing switched off: caches, dropout, layer drop and the choice of "
        "attention are its own. Two of it are made from one seed. One is handed to `compile` as "
        "it is, with the planner `dtr` and the budget of its row (between the floor of the step, "
        "0, and what it takes unplanned, 1; the first for which `dtr` has one); the other is the "
        "original in eager. Both train three steps of SGD with momentum. "
        "Compared in every bit: results, loss, every gradient, every parameter and buffer, the "
        "state of the generator.",
        "",
        counted,
        "",
        "* **time**: seconds of the processor for capture, costs, plan, proof, and the steps of "
        "both, without imports.",
        "* **status**: `whole`, one planned and proven step; `regions`, refused as a whole and "
        "trained by `torch.compile(model, backend=\"remat\")`; `refused`, in neither way.",
        "* **measured/proven**: bytes of a step by PyTorch's profiler, over the proven bound, "
        "parameters and gradients in both. It may not be more than 1. **of eager** is over what "
        "the original takes.",
        "* **note**: why a model is not planned as a whole, and the codes of the warnings that a "
        "user sees.",
        "",
        head,
        "|---|---|--:|--:|---|---|--:|--:|---|---|",
        *(row(o) for o in outcomes),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
