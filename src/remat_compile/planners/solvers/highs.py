"""HiGHS: the default solver of linear programs with integers.

Loaded in the worker's process only (see `solve.py`), as is `highspy`.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import numpy as np

from ..isolation.process import Arrays, Say

OPTIONS: dict[str, object] = {
    "output_flag": False,
    "threads": 1,
    "random_seed": 0,
    "mip_rel_gap": 1e-6,
    "mip_abs_gap": 1e-7,
    "mip_feasibility_tolerance": 1e-7,
    "primal_feasibility_tolerance": 1e-8,
}
"""One thread and fixed seeds: the same program gives the same answer."""

STATUS: dict[str, str] = {
    "kOptimal": "optimal",
    "kInfeasible": "infeasible",
    "kUnboundedOrInfeasible": "infeasible",
    "kModelEmpty": "optimal",
}
"""HiGHS's model status to ours; any other is `feasible` with a point, else `unknown`.
The programs we make are bounded below, so the third can only be infeasible."""

_BOUND_EVERY_S = 0.1


def solve(head: dict[str, Any], arrays: Arrays, say: Say) -> None:
    """Answers one request of `MilpSolver`."""
    import highspy

    model = highspy.Highs()
    for name, value in {**OPTIONS, **head.get("options", {})}.items():
        model.setOptionValue(name, value)
    model.setOptionValue("time_limit", float(head["time_limit_s"]))
    model.passModel(_model(highspy, arrays))
    if arrays["integer"].any():
        _report_progress(model, say, head.get("most_checks"))
    if "start" in arrays:
        start = highspy.HighsSolution()
        start.col_value = arrays["start"].tolist()
        model.setSolution(start)
    model.run()
    info = model.getInfo()
    status = STATUS.get(model.getModelStatus().name, "unknown")
    point: Arrays = {}
    if info.primal_solution_status == 2:
        point = {"point": np.array(model.getSolution().col_value, dtype=np.float64)}
    if status == "unknown" and point:
        status = "feasible"
    integer = bool(arrays["integer"].any())
    if integer:
        bound = info.mip_dual_bound
    else:
        bound = info.objective_function_value if status == "optimal" else -np.inf
    objective = info.objective_function_value if point else np.inf
    say({"last": True, "status": status, "objective": objective, "bound": bound}, point)


def _model(highspy: Any, arrays: Arrays) -> Any:
    lp = highspy.HighsLp()
    lp.num_col_ = len(arrays["cost"])
    lp.num_row_ = len(arrays["row_lower"])
    lp.col_cost_ = arrays["cost"]
    lp.col_lower_ = arrays["lower"]
    lp.col_upper_ = arrays["upper"]
    lp.row_lower_ = arrays["row_lower"]
    lp.row_upper_ = arrays["row_upper"]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = arrays["starts"]
    lp.a_matrix_.index_ = arrays["index"]
    lp.a_matrix_.value_ = arrays["value"]
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[i] for i in arrays["integer"]]
    return lp


def _report_progress(model: Any, say: Say, most_checks: int | None) -> None:
    """Says each better point, and the lower bound from time to time. Ends the search when it
    has looked at its limits so often: at the same place of the search on any machine."""
    said = [-np.inf, monotonic()]
    checks = 0

    def better(event: Any) -> None:
        out = event.data_out
        head = {"objective": out.objective_function_value, "bound": out.mip_dual_bound}
        say(head, {"point": np.array(out.mip_solution, dtype=np.float64)})

    def bound(event: Any) -> None:
        nonlocal checks
        checks += 1
        if most_checks is not None and checks >= most_checks:
            event.interrupt()
        value, now = event.data_out.mip_dual_bound, monotonic()
        if value > said[0] and now > said[1] + _BOUND_EVERY_S:
            said[:] = [value, now]
            say({"bound": value})

    model.cbMipImprovingSolution.subscribe(better)
    model.cbMipInterrupt.subscribe(bound)
