"""How long reading a `.fbir` file takes, and that both readers read the same.

    python benchmarks/parsing.py [--lines 1000 10000 100000] [--grammar-up-to 10000]

Reads the plans of real models that the tests keep, and the segmented chain of `verifier.py`
as text. `quick` takes runs of regular lines
as one token each, `checked` is `parse_program` (which does that in long texts only) with
all rules of well-formedness, `grammar` the grammar alone: its answer must be equal.
Seconds of processor time, since a busy machine is not a slow reader.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from remat_compile.ir.program import Argument
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program
from verifier import STEPS_PER_LAYER, chain

PLANS = Path(__file__).parent.parent / "tests" / "verifier" / "mutants" / "plans"
T = TypeVar("T")


def cpu_s(work: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


def row(name: str, text: str, *, with_grammar: bool) -> str:
    lines = text.count("\n")
    quick_s, quick = cpu_s(lambda: read_syntax(text, name, by_grammar_alone=False))
    checked_s, _ = cpu_s(lambda: parse_program(text, name))
    grammar = "-"
    if with_grammar:
        grammar_s, alone = cpu_s(lambda: read_syntax(text, name, by_grammar_alone=True))
        assert alone == quick, "the two readers differ"
        grammar = f"{grammar_s:.2f}"
    per = checked_s / lines * 100_000
    return f"{name:<16} {lines:>8} {quick_s:>8.2f} {checked_s:>8.2f} {grammar:>8} {per:>10.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--grammar-up-to", type=int, default=10_000)
    options = parser.parse_args()
    for alone in (False, True):  # the grammar's tables are built once
        read_syntax(format_program(chain(1)[0]), by_grammar_alone=alone)
    print(f"{'file':<16} {'lines':>8} {'quick':>8} {'checked':>8} {'grammar':>8} {'per 1e5':>10}")
    for path in sorted(PLANS.glob("*.fbir")):
        print(row(path.name, path.read_text(encoding="utf-8"), with_grammar=True), flush=True)
    for lines in options.lines:
        program, schedule = chain(max(1, lines // (STEPS_PER_LAYER + 6)))
        bound = replace(program.binding, arguments=(Argument("x", "x"),))
        text = format_program(replace(program, binding=bound).with_schedule(schedule))
        with_grammar = lines <= options.grammar_up_to
        print(row(f"chain {lines}", text, with_grammar=with_grammar), flush=True)


if __name__ == "__main__":
    main()
