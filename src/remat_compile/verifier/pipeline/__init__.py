"""A second opinion on pipelines: the rules of `spec/pipelines.md`, read off positions in rows."""

from .check import PipelineVerdict, check_pipeline

__all__ = ["PipelineVerdict", "check_pipeline"]
