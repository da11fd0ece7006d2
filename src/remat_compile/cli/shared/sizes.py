"""Options that ask for the largest size, or the one of the highest throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ...plans.options import Errors
from ...plans.source import ModelOptions

if TYPE_CHECKING:
    from ...ir.program import Program
    from ...plans.fit.largest import SizeFound
    from ...plans.fit.size_range import SizeRange
    from ...plans.request import PlanRequest
    from ...plans.run_planner import Phases

THROUGHPUT = "throughput"


@dataclass(frozen=True)
class Wanted:
    """The range of one size, and whether throughput is to be the highest, or the size."""

    over: SizeRange
    throughput: bool

    def __str__(self) -> str:
        """As on the command line."""
        return f"--dim {quote(str(self.over))}{' --maximize throughput' if self.throughput else ''}"

    def search(
        self,
        model: str,
        request: PlanRequest,
        options: ModelOptions,
        room: Callable[[Program], int],
        phases: Phases,
    ) -> tuple[SizeFound, Program]:
        """The size, and the program there."""
        from ...plans.fit.largest import SizeSearch
        from ...plans.fit.sizes import sized_model

        sized = sized_model(model, request, options, self.over, phases)
        search = SizeSearch(sized, request, room, phases)
        found = search.fastest() if self.throughput else search.largest()
        return found, sized.at(found.size)

    def chosen(
        self, model: str, request: PlanRequest, options: ModelOptions, quiet: bool
    ) -> tuple[PlanRequest, ModelOptions, SizeFound]:
        """A request for the plan at the size that is chosen, within the budget given, or what the
        device has."""
        from ...plans.fit.room import in_bytes, room_of
        from ...plans.fit.sizes import takes_sizes
        from ...plans.run_planner import Phases
        from .terminal import progress

        bytes_of = room_of(request)
        with progress(quiet=quiet) as say:
            found, program = self.search(model, request, options, bytes_of, Phases(say))
        if takes_sizes(model):
            options = replace(options, dims={**options.dims, found.name: str(found.size)})
        return replace(request, budget=in_bytes(bytes_of(program))), options, found


@dataclass(frozen=True)
class SizeOptions:
    """Sizes to choose from."""

    batch: Annotated[
        str | None,
        typer.Option(
            metavar="LOW..HIGH",
            help="Choose the batch: a parameter of the factory, the first dimension of an ONNX "
            "file, or the symbol of a program. --dim NAME=LOW..HIGH does so for any other size.",
        ),
    ] = None
    maximize: Annotated[
        str | None,
        typer.Option(
            metavar="batch|NAME|throughput",
            help="The largest size that fits (the default), or the highest throughput.",
        ),
    ] = None

    def read(self, errors: Errors, options: ModelOptions) -> tuple[ModelOptions, Wanted | None]:
        """The options without the range, and what is wanted. Adds FB0973."""
        from ...plans.fit.size_range import BATCH, read_range

        texts = {name: text for name, text in options.dims.items() if ".." in text}
        dims = {name: text for name, text in options.dims.items() if name not in texts}
        texts |= {BATCH: self.batch} if self.batch is not None else {}
        options = replace(options, dims=dims)
        read = [errors.collect(lambda n=n, t=t: read_range(n, t)) for n, t in texts.items()]  # type: ignore[misc]
        ranges = [one for one in read if one is not None]
        if len(texts) > 1:
            errors.add("FB0973", f"ranges of {' and '.join(texts)}", "choose one size at a time")
        name = self.maximize
        if name is not None and name not in (THROUGHPUT, *texts):
            hint = f"give --dim {name}=1..64" if name != BATCH else "give --batch 1..64"
            errors.add("FB0973", f"--maximize {name}, and no range of it is given", hint)
        elif name == THROUGHPUT and not texts:
            hint = "give --batch 1..64"
            errors.add("FB0973", "--maximize throughput, and no range of a size is given", hint)
        wanted = Wanted(ranges[0], name == THROUGHPUT) if ranges else None
        return options, wanted


def found_lines(found: SizeFound | None) -> Iterator[str]:
    """The answer of the search, in a line."""
    if found is None:
        return
    made = f"{found.planned} sizes planned by {found.planner}"
    per_s = f"{found.per_s:.4g} a second, predicted"
    if found.bound_per_s is None:
        yield f"{found.name} = {found.size} is the largest with a plan that fits ({made}); {per_s}"
    else:
        most = f"no size of the range has more than {found.bound_per_s:.4g}"
        yield f"{found.name} = {found.size} has the highest throughput: {per_s}; {most} ({made})"
