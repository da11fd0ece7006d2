"""Runs the row of one rank over `torch.distributed`."""

from .rank import RankRun, StepFailed
from .torch_schedule import StageModule, TorchSchedule, schedule_csv
from .transport import CrossingTensor, Transport

__all__ = [
    "CrossingTensor",
    "RankRun",
    "StageModule",
    "StepFailed",
    "TorchSchedule",
    "Transport",
    "schedule_csv",
]
