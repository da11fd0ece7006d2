"""Runs the situations of tests/redteam/situations, a process each, and counts their verdicts.

    python tests/runners/run_situations.py [names]

Exits with 1 if a case is `SILENT` or ends in a `CRASH`. Writes by `.data` or through `x.numpy()`
between forward and backward, which PyTorch does not count either, are the caller's risk (docs on
PyTorch): cases with these words in their names may be silent in `buffer_changes_between`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parents[1] / "redteam" / "situations"
UNCOUNTED = re.compile(r"^SILENT \| buffer_changes_between/[^|]*(data|numpy)")
BESIDE = re.compile(r"^SILENT \| dynamo_guards/\S+ aot_eager")
"""PyTorch's own backend, for comparison."""
DEFECT = re.compile(r"^(SILENT|CRASH|OVER|NOT MONOTONE|EAGER-RAISES-ONLY)")


def lines_of(script: Path) -> list[str]:
    """The verdicts that a script prints; a script that dies is a crash of its own."""
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if " | " in line]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        lines.append(f"CRASH | {script.stem} | {last}")
    return lines


def main(names: list[str]) -> int:
    scripts = sorted(p for p in HERE.glob("[a-z]*.py") if not names or p.stem in names)
    defects = []
    for script in scripts:
        if "from transformers" in script.read_text() and find_spec("transformers") is None:
            print(f"{script.stem}: left out, transformers is not installed")
            continue
        lines = lines_of(script)
        wrong = [
            x for x in lines if DEFECT.match(x) and not (UNCOUNTED.match(x) or BESIDE.match(x))
        ]
        defects += wrong
        verdicts = Counter(x.split(" ", 1)[0] for x in lines)
        print(f"{script.stem}: {', '.join(f'{n} {v}' for v, n in verdicts.items())}", flush=True)
        for line in wrong:
            print(f"    {line}", flush=True)
    print(f"{len(defects)} defects")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
