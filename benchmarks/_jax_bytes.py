"""XLA's temporary bytes along the budget, on the models of the tests."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import jax
from _tables import print_table

TESTS = Path(__file__).parents[1] / "tests"
BUDGETS = ("range:0.9", "range:0.7", "range:0.5", "range:0.4")
MODELS = (
    *(f"{n}-loss" for n in ("mlp", "gpt", "llama", "resnet", "unet", "encdec", "vit", "two")),
    "hf-gpt2",
    "hf-llama",
)


def runnable() -> tuple[str, ...]:
    """The models that can be made here; what is left out is told."""
    if find_spec("transformers") is not None:
        return MODELS
    left_out = [name for name in MODELS if name.startswith("hf-")]
    print(f"left out, since transformers is not installed: {', '.join(left_out)}")
    return tuple(name for name in MODELS if name not in left_out)


@dataclass(frozen=True)
class Falling:
    """One model in float64 without a plan, then by `dtr` at each of `BUDGETS`: bytes.

    `floor` is the least that a schedule can have alive; `predicted` is what each has alive at once.
    """

    name: str
    floor: int
    predicted: tuple[int, ...]
    compiled: tuple[int, ...]
    scratch: int

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(f / p for f, p in zip(self.compiled, self.predicted, strict=True))

    @property
    def share(self) -> float:
        """Where the bytes at `range:0.5` lie between the floor (0) and those without a plan (1)."""
        at_half = self.compiled[1 + BUDGETS.index("range:0.5")]
        return (at_half - self.floor) / (self.compiled[0] - self.floor)

    @property
    def rise(self) -> float:
        """The largest step up as the budget falls, as a share."""
        return max(after / before - 1 for before, after in itertools.pairwise(self.compiled))

    @property
    def holds(self) -> bool:
        within = all(0.6 <= ratio <= 1.4 for ratio in self.ratios)
        return within and self.rise <= 0.05 and self.share <= 0.65


def report(names: tuple[str, ...]) -> bool:
    """Prints the table; whether all that is promised of the bytes holds."""
    sys.path.insert(0, str(TESTS))
    with jax.enable_x64(True):
        curves = [measured(name) for name in names]
    plans = ("store-all", *BUDGETS)
    print_table(
        ("", "alive KiB", "XLA KiB", *plans, "share at range:0.5", "scratch KiB", ""),
        [row(f) for f in curves],
    )
    return all(f.holds for f in curves)


def measured(name: str) -> Falling:
    from helpers.jax.plans import case

    made = [case(name, "store-all"), *(case(name, "dtr", budget) for budget in BUDGETS)]
    seen = [c.looked_at()[0] for c in made]
    return Falling(
        name,
        made[0].floor,
        tuple(c.live for c in made),
        tuple(s.temp_bytes for s in seen),
        max(s.scratch_bytes for s in seen),
    )


def row(f: Falling) -> tuple[str, ...]:
    return (
        f.name,
        f"{f.predicted[0] / 1024:.0f}",
        f"{f.compiled[0] / 1024:.0f}",
        *(f"{ratio:.2f}" for ratio in f.ratios),
        f"{f.share:.2f}",
        f"{f.scratch / 1024:.0f}",
        "" if f.holds else "FAILS",
    )
