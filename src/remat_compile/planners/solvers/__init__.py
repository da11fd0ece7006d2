"""Solvers of linear programs with integers, in processes of their own."""

from .milp import Answer, Milp, MilpBuilder
from .solve import SOLVERS, MilpSolver

__all__ = ["SOLVERS", "Answer", "Milp", "MilpBuilder", "MilpSolver"]
