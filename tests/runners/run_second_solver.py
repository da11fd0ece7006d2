"""Asks cvc5 every script that z3 was asked about the recorded plans, right and wrong ones.

    python tests/runners/run_second_solver.py [--limit SECONDS] [FILE.fbir ...]

Prints a line per plan and obligation: the scripts, those that z3 proved (unsat) and those it
has a model of (sat), how many cvc5 gives the same answer to, and cvc5's seconds. Exit code 1
if one answer differs or is left open.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.verifier.second_solver import Row, recorded, rows_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per script")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    print(f"{'plan':<58} {'obligation':<14} scripts unsat   sat agreed  seconds")
    rows: list[Row] = []
    for path in options.files or recorded():
        for row in rows_of(path, options.limit):
            rows.append(row)
            print(line(row), flush=True)
    sums: dict[str, Row] = defaultdict(lambda: Row("all", ""))
    for row in rows:
        for obligation in (row.obligation, "all"):
            total = sums[obligation]
            total.obligation = obligation
            total.unsat, total.sat = total.unsat + row.unsat, total.sat + row.sat
            total.agreed, total.seconds = total.agreed + row.agreed, total.seconds + row.seconds
    for name in sorted(sums, key=lambda name: (name == "all", name)):
        print(line(sums[name]))
    wrong = [text for row in rows for text in row.wrong]
    print(f"plans: {len({row.plan for row in rows})}, not agreed: {len(wrong)}")
    for text in wrong:
        print(f"  {text}")
    return 1 if wrong or not rows else 0


def line(row: Row) -> str:
    counts = f"{row.scripts:>7} {row.unsat:>5} {row.sat:>5} {row.agreed:>6}"
    return f"{row.plan:<58} {row.obligation:<14} {counts} {row.seconds:>8.2f}"


if __name__ == "__main__":
    sys.exit(main())
