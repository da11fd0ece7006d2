"""Reads damaged texts twice: in runs of lines and by the grammar alone.

    python tests/runners/run_reader_fuzz.py --inputs 50000 [--seed 1] [--keep DIR]

Prints one summary line. Ends with 1 when two readings differed or anything but a diagnostic was
raised; the texts are printed, and kept under DIR.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.text.reader_fuzz import check, inputs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=None)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    failures = 0
    start = time.process_time()
    for number, text in enumerate(inputs(options.seed, options.inputs)):
        try:
            counts[check(text)] += 1
        except Exception:
            failures += 1
            print(f"--- input {number}\n{text}\n--- {traceback.format_exc()}", flush=True)
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                kept = options.keep / f"{options.seed}_{number}.fbir"
                kept.write_text(text, encoding="utf-8", newline="")
    seconds = time.process_time() - start
    print(
        f"reader fuzz: {options.inputs} inputs (seed {options.seed}), {counts['quick']} read in "
        f"runs of lines as by the grammar, {counts['grammar']} by the grammar only, "
        f"{counts['refused']} refused, {failures} disagreements or crashes, {seconds:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
