"""Builds modules from damaged ONNX files, in a process that may die, hang or grow.

    python tests/runners/run_onnx_fuzz.py --files 2000 [--seed 1] [--seconds 900] [--keep DIR]

Ends with 1 where a file led to anything but a diagnostic or a module that runs: an exception, a
crash, more than 20 seconds of processor time, more than 2 GiB, or a file that was written.
"""

from __future__ import annotations

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.onnx.damage import check, mutants

SECONDS_EACH = 20
MOST_BYTES = 2 * 2**30
CHUNK = 500


def worker(seed: int, start: int, count: int) -> int:
    """Prints a line before and after each file, so that the parent knows where it ended."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(mutants(seed, start, count), start):
            print(f"try {number}", flush=True)
            signal.setitimer(signal.ITIMER_PROF, SECONDS_EACH)
            try:
                ending = check(data, Path(folder))
            except Exception:
                ending = "raised " + repr(traceback.format_exc()[-1500:])
            signal.setitimer(signal.ITIMER_PROF, 0)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_BYTES:
                print(f"end {number} grew", flush=True)
                return 1
            print(f"end {number} {ending}", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    if given.worker:
        return worker(given.seed, given.start, given.files)
    counts: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    began, number, end = time.monotonic(), given.start, given.start + given.files
    while number < end and time.monotonic() - began < given.seconds:
        count = min(CHUNK, end - number)
        command = [sys.executable, __file__, "--worker", "--seed", str(given.seed)]
        command += ["--start", str(number), "--files", str(count)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        last = number
        for line in done.stdout.splitlines():
            word, place, *rest = line.split(" ", 2)
            last = int(place)
            if word == "end":
                ending = rest[0]
                counts[ending.split(" ")[0]] += 1
                if ending.startswith(("raised", "grew")):
                    failures.append((last, ending))
        lines = done.stdout.splitlines()
        if done.returncode and not (lines and lines[-1].startswith("end")):
            failures.append((last, f"the process ended with {done.returncode}"))
            counts["died"] += 1
        number = last + 1 if done.returncode else number + count
    tell(given, counts, failures, number - given.start, time.monotonic() - began)
    return 1 if failures else 0


def tell(
    given: argparse.Namespace,
    counts: Counter[str],
    failures: list[tuple[int, str]],
    files: int,
    seconds: float,
) -> None:
    """The failures, and one line of figures."""
    for number, what in failures:
        print(f"--- file {number}: {what}")
        if given.keep is not None:
            given.keep.mkdir(parents=True, exist_ok=True)
            (data,) = mutants(given.seed, number, 1)
            (given.keep / f"{given.seed}_{number}.onnx").write_bytes(data)
    endings = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    print(
        f"ONNX fuzz: {files} files (seed {given.seed}): {endings}; "
        f"{len(failures)} failures, {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
