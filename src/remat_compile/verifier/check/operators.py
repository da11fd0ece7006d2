"""Effects of operators beside computing new tensors, by a list of the checker's own.

`operators.txt` has flags, then the operators that have them: `r` draws random numbers (`r5`: unless
argument 5 is 0), `w` writes (`w3,5`: if argument 3 is given and argument 5 is not false), `v` gives
views, `m` maybe. What has another flag is no function that a plan may call.
"""

from functools import cache
from pathlib import Path

LIBRARY = "remat_compile"  # of the codecs


def draws(operator: str, words: list[str]) -> bool:
    place = flags(operator).partition("r")[2].rstrip("vmwn")
    if not place:
        return "r" in flags(operator)
    chance = "".join(given(words, int(place), "dropout_p"))
    try:
        return float(chance) != 0
    except ValueError:
        return chance not in ("", "none", "false")


def is_function(operator: str, words: list[str]) -> bool:
    """Writes nothing, and hands out no memory that is not its own."""
    own = flags(operator)
    mean, _, training = own.partition("w")[2].partition(",")
    if training:
        kept = given(words, int(mean), "running_mean") in ([], ["none"])
        return kept or given(words, int(training), "training") == ["false"]
    return not {*own} & {*"wucentx"}


def gives_view(operator: str) -> bool:
    return "v" in flags(operator)


def may_give_view(operator: str) -> bool:
    """Return whether an operator may give a view; one of no library of PyTorch's own may."""
    known = operator.split(".")[0] in ("aten", "prims", LIBRARY)
    return not known or bool({*"vm"} & {*flags(operator)})


def codec(operator: str) -> tuple[str, str]:
    """Return `pack` or `unpack`, and by which codec; nothing of other operators."""
    library, _, rest = operator.partition(".")
    half, _, kind = rest.removesuffix(".default").partition("_")
    return (half, kind) if library == LIBRARY else ("", "")


def given(words: list[str], place: int, name: str) -> list[str]:
    """The argument at a place, or of that name; nothing where it is left out."""
    parts, depth = [list[str]()], 0
    for word in words:
        depth += (word in ("(", "[")) - (word in (")", "]"))
        if word == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(word)
    named = [part[2:] for part in parts if part[:2] == [name, "="]]
    at = [part for part in parts[place : place + 1] if part[1:2] != ["="]]
    return (named or at or [[]])[0]


@cache
def flags(operator: str) -> str:
    return table().get(operator) or table().get(operator.split(".")[0] + ".*", "")


@cache
def table() -> dict[str, str]:
    known, own = dict[str, str](), ""
    for word in Path(__file__).with_name("operators.txt").read_text("utf-8").split():
        if word[0] == "[":
            own = word[1:-1]
        else:
            name, _, overloads = word.rpartition(".")
            known |= {f"{name}.{overload}": own for overload in overloads.split(",")}
    return known
