"""Runs the row of one rank over `torch.distributed`."""

from .draws import random_stages
from .rank import RankRun, StepFailed, message_bytes
from .torch_schedule import StageModule, TorchSchedule, schedule_csv
from .transport import CrossingTensor, Transport

__all__ = [
    "CrossingTensor",
    "RankRun",
    "StageModule",
    "StepFailed",
    "TorchSchedule",
    "Transport",
    "message_bytes",
    "random_stages",
    "schedule_csv",
]
