"""The results of `benchmarks/models.py`: one row per architecture, and a page that sums them up."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Sequence

from _beside_eager import Outcome

KNOWN = {
    "hubert": "its masks are NumPy's, which TorchDynamo draws with PyTorch",
    "nystromformer": "its attention adds a mask of all positions to scores of landmarks; in eager "
    "transformers leaves out a mask of ones, under any tracing it does not",
    "wav2vec2": "its masks are NumPy's, which TorchDynamo draws with PyTorch",
}
"""Known reasons for different bits or a refusal."""

COLUMNS = (
    "model",
    "from",
    "parameters",
    "time_s",
    "status",
    "budget",
    "measured_over_proven",
    "of_eager",
    "bits",
    "note",
)


def row(o: Outcome) -> tuple[str, ...]:
    """The fields of `COLUMNS`; empty where there is no figure."""
    share = of_eager = ""
    if o.bytes is not None:
        share = f"{o.bytes['measured'] / o.bytes['proven']:.3f}"
        of_eager = f"{o.bytes['ours'] / o.bytes['eager']:.2f}"
    way = {"late": "out of time"}.get(o.way, o.way)
    note = "; ".join(part for part in (_known(o), o.reason[:240], ", ".join(o.codes)) if part)
    seconds = f"{o.time_s:.0f}"
    figures = (o.budget, share, of_eager, _bits(o), note)
    return (o.name, o.origin, str(o.parameters), seconds, way, *figures)


def _known(o: Outcome) -> str:
    return "" if o.equal else KNOWN.get(o.name, "")


def _bits(o: Outcome) -> str:
    if not o.different:
        return f"{o.tensors} equal" if o.equal else ""
    same = f"; all equal to PyTorch's own `{o.same_as}`" if o.same_as else ""
    return f"{len(o.different)} of {o.tensors} differ, {o.different[0]} first{same}"


def table(outcomes: Sequence[Outcome]) -> str:
    """The rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row(o) for o in outcomes)
    return text.getvalue()


def page(outcomes: Sequence[Outcome], versions: Sequence[str], left_out: int) -> str:
    """The summary; `left_out` counts the architectures that were not run."""
    equal = sum(o.equal for o in outcomes)
    whole = sum(o.equal and o.way == "whole" for o in outcomes)
    silent = [o.name for o in outcomes if o.silent]
    shares = sorted(o.bytes["measured"] / o.bytes["proven"] for o in outcomes if o.bytes)
    counted = (
        f"**{equal} of {len(outcomes)} are equal in every bit** ({whole} as one planned step, "
        f"{equal - whole} by regions). Differences without a reason: {', '.join(silent) or 'none'}."
    )
    counted += f" {left_out} more in `benchmarks/zoo` were not run." if left_out else ""
    if shares:
        counted += (
            f" Measured over proven bytes: {shares[0]:.3f} to {shares[-1]:.3f}, "
            f"median {shares[len(shares) // 2]:.3f}."
        )
    others = [o for o in outcomes if not o.equal]
    lines = [
        "# Architectures, trained beside eager",
        "",
        f"Written by `benchmarks/models.py` on {datetime.date.today()} with "
        f"{', '.join(versions)}, float32, on the CPU, one thread.",
        "",
        "Each model comes from its own constructor with a small configuration and random weights, "
        "in train mode, dropout and caches included. Two copies are made from one seed. One is "
        "handed to `compile` with the planner `dtr` at `range:0.8`, or else `range:1.0`; the "
        "other trains in eager. Both train three steps of SGD with momentum. Results, loss, "
        "gradients, parameters, buffers and the state of the generator are compared in every bit.",
        "",
        counted,
        "",
        "[`benchmarks/results/models.csv`](../../benchmarks/results/models.csv) has a row per "
        "model. `time_s` is processor time for capture, costs, plan, proof and both trainings. "
        "`status` is `whole` (one planned step), `regions` (refused as a whole, trained by "
        '`torch.compile(model, backend="remat")`) or `refused`. `measured_over_proven` and '
        "`of_eager` are bytes of a step, parameters and gradients included. `note` has the reason "
        "of a refusal and the codes of warnings.",
    ]
    if others:
        lines += ["", "Not equal:", ""]
        lines += [f"* {o.name}: {'; '.join(p for p in (_bits(o), _known(o)) if p)}" for o in others]
    return "\n".join(lines) + "\n"
