"""Seeds every kind of fault into the correct plans of real models, and counts what escapes.

    python tests/runners/run_mutants.py [--each 3] [--kind NAME ...]

Prints a line per kind: how many plans it applies to, how many mutants were tried, how many
refuted with the right code at the right place. Exit code 1 if one escapes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.verifier.mutants import KINDS, cases
from helpers.verifier.mutants.check import escape_of, prove
from helpers.verifier.mutants.sample import sample


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=3, help="mutants per kind and plan")
    parser.add_argument("--kind", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    for case in cases():
        prove(case)
    print(f"{len(cases())} plans of {len({c.program.graph.name for c in cases()})} models proven")
    print(f"{'where':<11} {'fault':<46} {'plans':>5} {'sites':>6} {'tried':>6} {'refuted':>7}")
    tried = {"schedule": 0, "graph": 0, "certificate": 0}
    escapes = []
    for name in options.kind:
        kind = KINDS[name]
        plans = sites = count = bad = 0
        for case in cases():
            mutants = list(kind.mutants(case))
            plans, sites = plans + bool(mutants), sites + len(mutants)
            for mutant in sample(mutants, options.each, Random(f"{name} {case.name}")):
                count += 1
                if (escape := escape_of(case, mutant)) is not None:
                    bad += 1
                    escapes.append(escape)
        tried[kind.where] += count
        print(
            f"{kind.where:<11} {name:<46} {plans:>5} {sites:>6} {count:>6} {count - bad:>7}",
            flush=True,
        )
    for where in tried:
        kinds = sum(KINDS[name].where == where for name in options.kind)
        print(f"{where}: {kinds} kinds of fault, {tried[where]} mutants")
    print(f"escapes: {len(escapes)}")
    for escape in escapes:
        print(f"  {escape}")
    return 1 if escapes else 0


if __name__ == "__main__":
    sys.exit(main())
