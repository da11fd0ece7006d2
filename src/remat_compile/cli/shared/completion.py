"""`remat-compile completion`: what a shell asks when Tab is pressed."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

import typer

from .commands import ASKED, COMMANDS, function_of
from .options import with_all_options

PROGRAM = "remat-compile"


def command(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Whose script.")],
) -> None:
    """Print the script that completes commands, options and their values in a shell.

    For bash: eval "$(remat-compile completion bash)" in ~/.bashrc. For zsh the same with zsh in
    ~/.zshrc, after compinit; for fish: remat-compile completion fish > ~/.config/fish/completions/
    remat-compile.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    from .terminal import echo

    script = get_completion_script(prog_name=PROGRAM, complete_var=ASKED, shell=shell)
    echo(*script.split("\n"))


def complete() -> int:
    """Answers a shell on standard output; what it has typed stands in the environment."""
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = re.split(r"[ \n]+", typed)
    first = words[1] if len(words) > 1 else ""
    is_whole = len(words) > 2 and os.environ.get("COMP_CWORD") != "1"
    app = typer.Typer(rich_markup_mode=None)
    if first in COMMANDS or (not is_whole and not first.startswith("-")):
        wanted = [first] if is_whole else list(COMMANDS)
    else:
        wanted = []
    for name in wanted:
        own = function_of(name)
        app.command(name, help=COMMANDS[name])(with_all_options(own, lambda context, verbose: None))
    if wanted:
        app.callback()(lambda: None)
    else:
        own = function_of("plan")
        app.command()(with_all_options(own, lambda context, verbose: None))
    app(prog_name=PROGRAM, complete_var=ASKED)
    return 0
