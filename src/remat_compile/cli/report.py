"""`remat-compile report`: a plan as one HTML page."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared.options import PlanFile, Quiet, ScheduleOption


def command(
    plan: PlanFile,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE.html", help="Where to write; - is standard output."
        ),
    ],
    schedule: ScheduleOption = None,
    quiet: Quiet = False,
) -> None:
    """A plan as one HTML page that opens offline in any browser.

    Memory over the step by kind, the streams, what fills the peak, lifetimes, time by operator
    and module. All is simulated; `remat-compile verify` proves it.
    """
    from ..plans.files.files import STREAM, write_text
    from ..plans.files.look import read_subject
    from ..plans.files.outputs import check_output, files_of_model
    from ..report.page import page
    from .shared.terminal import echo

    check_output(output, "picture", files_of_model(plan), all_known=False)
    subject, reads = read_subject(plan, schedule)
    check_output(output, "picture", reads)
    write_text(output, page(subject))
    if not quiet and output != STREAM:
        echo(f"wrote {output}")
