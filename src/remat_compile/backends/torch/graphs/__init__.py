"""A planned step as two graphs of the device, each of which is launched as one."""

from .choice import check_graphs, recorder_for
from .recorder import GraphRecorder, Recording
from .step import StepGraphs

__all__ = ["GraphRecorder", "Recording", "StepGraphs", "check_graphs", "recorder_for"]
