"""Seeds faults into our own trusted modules, and counts wrong plans that are proven.

    python tests/runners/run_faults.py [--dangerous 20] [--most 400] [--seconds 80] [MODULE ...]

Per module: faults tried; `broken`, those that fell over or ran too long; `dangerous`, those with
which that side alone proves something wrong (the solver without the checker; for the checker's
modules the checker without the solver), and how many of these the other side caught. Stops at so
many dangerous faults, tries or seconds per module. Exit code 1 if one escapes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.verifier.module_faults import (
    MODULES,
    SOURCE,
    ask_all,
    corpus,
    entries_for,
    mutants_of,
    remember_answers,
    try_fault,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=[m for m in MODULES if (SOURCE / m).exists()])
    parser.add_argument("--dangerous", type=int, default=20)
    parser.add_argument("--most", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=80)
    options = parser.parse_args()
    heads = ("plans", "tried", "broken", "dangerous", "caught", "escaped")
    print(f"{'module':<30}" + "".join(f"{head:>10}" for head in heads))
    escaped = []
    remember_answers()
    ask_all(corpus())
    for module in options.modules:
        entries, tried, broken = entries_for(module), 0, 0
        begun = time.monotonic()
        dangerous, missed = [], []
        for name, tree in mutants_of(module, options.most):
            outcome = try_fault(module, name, tree, entries)
            tried, broken = tried + 1, broken + (not outcome.finished)
            dangerous += [outcome] if outcome.alone else []
            missed += [outcome] if outcome.together else []
            if len(dangerous) >= options.dangerous:
                break
            if time.monotonic() - begun > options.seconds:
                break
        caught = len(dangerous) - len([o for o in missed if o.alone])
        counts = (len(entries), tried, broken, len(dangerous), caught, len(missed))
        print(f"{module:<30}" + "".join(f"{count:>10}" for count in counts), flush=True)
        escaped += missed
    for outcome in escaped:
        print(f"  escaped: {outcome.fault}: {', '.join(outcome.together[:5])}")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
