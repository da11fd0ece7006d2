"""Runs the stored tests of ONNX releases through the frontend.

    python tests/runners/run_onnx_operators.py [WHEEL ...] [--releases FOLDER] [--write FILE]

Each WHEEL is one of the package `onnx`; it is read as a zip file. `--releases` downloads those from
1.5 on into FOLDER, where they are not there yet. The installed package is always run. Ends with 1
where a case gives a wrong result or an exception without a code, or where a release has fewer than
400 float cases or fewer than 95 % of them right.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.onnx.cases import Case, Ending, Outcome, of_installed, of_wheel, run
from helpers.onnx.releases import FAULTY, LEAST_CASES, LEAST_SHARE, RELEASES, faulty, wheel_of


@dataclass
class Tally:
    """What became of the cases of a release."""

    release: str
    floats: Counter[Ending] = field(default_factory=Counter)
    others: Counter[Ending] = field(default_factory=Counter)
    faulty: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="*", type=Path)
    parser.add_argument("--releases", type=Path, metavar="FOLDER")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.releases is not None:
        given.wheels += [wheel_of(release, given.releases) for release in RELEASES]
    warnings.simplefilter("ignore")
    releases: list[tuple[str, Iterable[Case]]] = [
        (wheel.name.split("-")[1], of_wheel(wheel)) for wheel in given.wheels
    ]
    releases.sort(key=lambda pair: [int(part) for part in pair[0].split(".")])
    releases.append((onnx.__version__, of_installed()))
    seen: dict[str, Outcome] = {}
    tallies, refused, bad = [], defaultdict(set), []
    for release, cases in releases:
        tally = Tally(release)
        for case in cases:
            if case.digest not in seen:
                seen[case.digest] = run(case)
            outcome = seen[case.digest]
            if outcome.ending is Ending.WRONG and faulty(release, case.name):
                tally.faulty += 1
                continue
            (tally.floats if case.is_float else tally.others)[outcome.ending] += 1
            if outcome.ending is Ending.REFUSED and case.is_float:
                refused[kind_of(outcome)].add(case.name)
            elif outcome.ending in (Ending.WRONG, Ending.CRASHED):
                bad.append(f"{release} {case.name}: {outcome.ending.value}: {outcome.reason}")
                print(bad[-1], flush=True)
        tallies.append(tally)
        print(row(tally), flush=True)
    if given.write is not None:
        given.write.write_text(report(tallies, refused), encoding="utf-8")
    return 1 if bad or not all(map(enough, tallies)) else 0


def enough(tally: Tally) -> bool:
    """Whether as many float cases are right as is promised of every release."""
    total = sum(tally.floats.values())
    return total > LEAST_CASES and tally.floats[Ending.PASSED] >= LEAST_SHARE * total


def kind_of(outcome: Outcome) -> str:
    """The reason of a refusal without the names of one case."""
    if outcome.code == "FB0607":
        names = sorted(set(re.findall(r"([\w.]+) \(opset", outcome.reason)))
        names = names or [outcome.reason.rpartition(": ")[2]]
        return f"{outcome.code} not supported: {', '.join(names)}"
    text = re.sub(r'^node "[^"]*" \((\w+), opset \d+\)', r"\1", outcome.reason)
    text = re.sub(r'(input|output|tensor) "[^"]*"', r"\1", text)
    return f"{outcome.code} {re.sub(r'[0-9]+', 'N', text)[:110]}"


def row(tally: Tally) -> str:
    """A row of the table."""
    f, o = tally.floats, tally.others
    counts = (
        sum(f.values()),
        f[Ending.PASSED],
        f[Ending.REFUSED],
        sum(o.values()),
        o[Ending.PASSED],
        tally.faulty,
    )
    return f"| {tally.release} | " + " | ".join(map(str, counts)) + " |"


def ended(tallies: list[Tally], ending: Ending) -> int:
    """The number of cases that ended so."""
    return sum(t.floats[ending] + t.others[ending] for t in tallies)


def report(tallies: list[Tally], refused: dict[str, set[str]]) -> str:
    """The page."""
    head = (
        "| release | float cases | pass | refused | other cases | pass | stored result at fault |"
    )
    lines = [
        "# The operators, by the tests of ONNX releases",
        "",
        f"Written by `tests/runners/run_onnx_operators.py` on {datetime.date.today()} with onnx "
        f"{onnx.__version__} and torch {torch.__version__}. A float case has a floating-point "
        "input and output. Operators written out as functions are left out. Every refusal has a "
        f"code. Wrong: {ended(tallies, Ending.WRONG)}. "
        f"Ended without a code: {ended(tallies, Ending.CRASHED)}.",
        "",
        head,
        "|" + "---|" * 7,
        *(row(tally) for tally in tallies),
        "",
        "## Stored results that are not the standard's",
        "",
        *(f"* onnx {releases}, `{cases}`: {why}" for releases, cases, why in FAULTY),
        "",
        "## Float cases that are refused",
        "",
        "Over all releases, each name once.",
        "",
        "| reason | cases |",
        "|---|---|",
    ]
    for reason, names in sorted(refused.items(), key=lambda pair: -len(pair[1])):
        lines.append(f"| {reason.replace('|', '/')} | {len(names)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
