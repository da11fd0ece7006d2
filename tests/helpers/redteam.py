"""What a red team found in November 2026, as files and commands, and what must come of each.

`files/` holds them: `parse` (files that one reader took for others than the grammar does),
`sec` (payloads in names, and sources that are code), `sem` (plans that were proven and are
wrong), `fuzz` (crashes of the reader), `exe` (proven plans that could not be run). Those of
`made` are too long to keep and are written from a conformance file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from helpers.paths import CONFORMANCE, TESTS

FILES = TESTS / "redteam" / "files"
BASE = CONFORMANCE / "valid" / "mlp.fbir"


class Outcome(Enum):
    """What a command must do, beside leaving no trace of a payload."""

    REFUSED = "exit code 1 or 2 and a code"
    HARMLESS = "done, or refused with a code"
    DONE = "exit code 0"


@dataclass(frozen=True)
class Case:
    """A command on a file. `{plan}` stands for its name; the folder of the file is copied
    beside it, and is where the command runs."""

    file: str
    command: str
    outcome: Outcome
    is_slow: bool = False

    @property
    def words(self) -> list[str]:
        return [word.replace("{plan}", Path(self.file).name) for word in self.command.split()]

    def __str__(self) -> str:
        return f"{self.file}: {self.command}"


REFUSED, HARMLESS, DONE = Outcome.REFUSED, Outcome.HARMLESS, Outcome.DONE
VERIFY = "verify {plan} --time-limit 5"
SHOW = "show {plan}"
CERTIFICATE = "verify {plan} --require-certificate"
RUN_NET = "run {plan} --model net.py:make --quiet"
RUN_LN = "run {plan} --model ln.py:make --quiet"
RUN_M = "run {plan} --model m.py:make --quiet"
RUN_JAX = "run {plan} --backend jax --quiet"
RUN = "run {plan} --quiet"
TORCH = "{plan} --emit torch -o emitted.py"
JAX = "{plan} --emit jax -o emitted.py"
ALL = "verify {plan} --schedule all"
BLAME = "verify {plan} --budget 1B"

TABLE: dict[str, dict[str, Outcome]] = {
    "parse/steps_inside_proven.fbir": {VERIFY: REFUSED, SHOW: REFUSED},
    "parse/steps_attributed_elsewhere.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    "parse/indented_schedule_crash.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    "parse/cnode_named_schedule_col0.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    "parse/step_schedule_col0.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    "parse/graph_nodes_in_bind.fbir": {VERIFY: REFUSED, SHOW: REFUSED},
    "fuzz/fz_CRASH_7_1.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    "fuzz/fz_CRASH_7_2.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    "fuzz/fz_CRASH_7_3.fbir": {VERIFY: REFUSED, SHOW: REFUSED},
    "fuzz/fz_CRASH_7_4.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    # Operators that do more than compute, which were proven: draws that are made again, storage
    # under two names, memory that nobody wrote. And a schedule that was not looked at.
    **{
        f"turn3/{name}.fbir": {VERIFY: REFUSED, TORCH: REFUSED}
        for name in (
            *("random_without_token", "random_in_a_region", "argument_given_back"),
            "unwritten_memory",
        )
    },
    "turn3/wrong_before_the_last.fbir": {VERIFY: REFUSED},
    # Controls: what is right must go on working.
    "sec/good.fbir": {
        VERIFY: DONE,
        RUN_NET: DONE,
        TORCH: DONE,
        # Python is not loaded because a plan says so.
        JAX: REFUSED,
        f"{JAX} --model net.py:make": DONE,
        f"{JAX} --trust-source": DONE,
        # A plan may not overwrite the model that it was made from.
        "{plan} -o net.py": REFUSED,
        "{plan} --emit torch -o net.py": REFUSED,
        "{plan} -o ./net.py": REFUSED,
    },
    # Payloads that ran. The text is data, so the plan may be run; the payload may not.
    **{
        f"sec/ev_{where}.fbir": {
            VERIFY: HARMLESS,
            SHOW: HARMLESS,
            RUN_NET: HARMLESS,
            TORCH: HARMLESS,
            JAX: HARMLESS,
            f"{JAX} --model net.py:make": HARMLESS,
        }
        for where in ("graph", "loc", "planner", "sched")
    },
    **{
        f"sec/nomodel/{where}.fbir": {VERIFY: HARMLESS, RUN_JAX: HARMLESS, JAX: HARMLESS}
        for where in ("graph", "loc", "planner", "sched")
    },
    "sec/plans/abs.fbir": {RUN: REFUSED, RUN_JAX: HARMLESS, VERIFY: HARMLESS},
    "sec/plans/rel.fbir": {RUN: REFUSED, RUN_JAX: HARMLESS, VERIFY: HARMLESS},
    # Escape sequences and bidirectional characters in what is printed.
    **{
        f"sec/esc{which}.fbir": {
            VERIFY: HARMLESS,
            BLAME: REFUSED,
            SHOW: HARMLESS,
            RUN_NET: HARMLESS,
            TORCH: HARMLESS,
        }
        for which in ("", "2")
    },
    "sem/bidi.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS, BLAME: REFUSED},
    "made/bidi.fbir": {VERIFY: REFUSED},
    "made/esc.fbir": {ALL: HARMLESS, "show {plan} --schedule all": HARMLESS},
    "made/nul.fbir": {ALL: HARMLESS, "show {plan} --schedule all": HARMLESS},
    "made/surrogate.fbir": {VERIFY: REFUSED, SHOW: REFUSED},
    "made/surrogate2.fbir": {VERIFY: REFUSED, SHOW: REFUSED},
    # Replay forms with two results swapped: the same call is the same function, by position.
    "sem/swap_bad.fbir": {VERIFY: REFUSED},
    "sem/swap2_bad.fbir": {VERIFY: REFUSED, RUN_LN: REFUSED},
    "sem/swap2_good.fbir": {VERIFY: DONE},
    "sem/swap2_ok.fbir": {VERIFY: DONE, RUN_LN: DONE},
    "sem/ln.fbir": {VERIFY: DONE},
    "sem/ln_all.fbir": {VERIFY: DONE},
    # Proven, and then an UnboundLocalError.
    "sem/nosave_crash.fbir": {VERIFY: DONE, RUN_LN: DONE},
    "exe/exc_2_3.fbir": {VERIFY: DONE, RUN_M: DONE},
    "exe/exc_2_4.fbir": {VERIFY: DONE, RUN_M: DONE},
    # Bytes that cannot be, and a device that has none.
    "sem/lie_bytes.fbir": {VERIFY: REFUSED},
    "sem/lie_bytes_proof.fbir": {VERIFY: REFUSED, CERTIFICATE: REFUSED},
    "sem/lie_shape.fbir": {VERIFY: REFUSED},
    "made/target_mem.fbir": {VERIFY: REFUSED},
    # A certificate of other steps (sealed anew), and one under another header.
    "sem/forged.fbir": {VERIFY: REFUSED},
    "sem/hdr.fbir": {CERTIFICATE: REFUSED},
    # Graphs that are no graph of the model.
    "sem/inplace.fbir": {VERIFY: REFUSED, TORCH: REFUSED},
    "sem/othergrad.fbir": {
        VERIFY: HARMLESS,
        RUN_NET: REFUSED,
        "verify {plan} --model net.py:make": REFUSED,
    },
    "sem/indent.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    "sem/notime.fbir": {VERIFY: HARMLESS},
    "sem/g0.fbir": {VERIFY: HARMLESS, SHOW: HARMLESS},
    # Numbers of 4 300 digits.
    **{f"made/huge{kind}.fbir": {VERIFY: REFUSED, SHOW: REFUSED} for kind in ("", "_sum", "_time")},
}

BOMB = "verify {plan} --time-limit 2"
BOMBS = ("mul", "nest", "wide", "mixed", "fermat")
"""Size expressions of one line: within the time limit, whatever they say."""


def cases() -> Iterator[Case]:
    for file, commands in TABLE.items():
        for command, outcome in commands.items():
            yield Case(file, command, outcome)
    for name in BOMBS:
        yield Case(f"made/bomb_{name}.fbir", BOMB, HARMLESS, is_slow=name != "nest")


def _base() -> str:
    return BASE.read_text(encoding="utf-8")


def _h1_bytes(expression: str) -> str:
    old = "%h1 : act f32[8, 8] bytes 256"
    text = _base().replace(old, f"%h1 : act f32[8, 8] bytes {expression}")
    assert text != _base()
    return text


def _with_symbol(low: str, high: str, sample: int, expression: str) -> str:
    symbol = f"sym b in [{low}, {high}] = {sample} of arg 0 dim 0"
    text = _h1_bytes(expression).replace("\ntarget", f"\n{symbol}\ntarget", 1)
    return text.replace("%x : input f32[8, 8] bytes 256", "%x : input f32[b, 8] bytes 256")


def _with(old: str, new: str) -> str:
    text = _base().replace(old, new, 1)
    assert text != _base()
    return text


def _mixed() -> str:
    falling = ", ".join(f"(b-{k})*({k + 7}-b)+floordiv(b*b,{k + 1})" for k in range(60))
    return f"max({falling})+10000000000000"


BIG = "9" * 4299

MADE: dict[str, Callable[[], str]] = {
    "huge": lambda: _h1_bytes(f"{BIG}*{BIG}"),
    "huge_sum": lambda: _base().replace("bytes 256", f"bytes 9{BIG}"),
    "huge_time": lambda: _base().replace("time 10us", f"time {BIG}s"),
    "esc": lambda: _with('by "store-all"', r'by "\u001b[2J\u001b[HOK"'),
    "bidi": lambda: _with("  F1; F2\n", "  F1; F9 // \u202e free %h1 \u2066\n"),
    "nul": lambda: _with('by "store-all"', r'by "\u0000"'),
    "surrogate": lambda: _with('"fc1"', r'"\ud800"'),
    "surrogate2": lambda: _with('by "store-all"', r'by "\ud83d"'),
    "target_mem": lambda: _with(
        'target "cpu" { memory 1GiB granularity 1 }', 'target "tiny" { memory 1 }'
    ),
    "bomb_mul": lambda: _with_symbol("0", "9" * 4200, 2, "*".join(["b"] * 400)),
    "bomb_nest": lambda: _with_symbol("0", "9", 2, "(" * 60 + "b" + "*(b+1))" * 60),
    "bomb_wide": lambda: _with_symbol("0", "9", 2, "*".join(["(b+1)"] * 3000)),
    "bomb_mixed": lambda: _with_symbol("0", "1000000", 2, _mixed()),
    "bomb_fermat": lambda: _with_symbol(
        "0", "1000000000", 2, "max(0,(b*b*b - 3*b*b + 7*b*floordiv(b,3)*(5-b)))+10"
    ),
}
