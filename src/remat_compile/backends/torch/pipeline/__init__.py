"""Runs the row of one rank over `torch.distributed`."""

from .draws import random_stages
from .rank import RankRun, StepFailed
from .transport import CrossingTensor, Transport

__all__ = ["CrossingTensor", "RankRun", "StepFailed", "Transport", "random_stages"]
