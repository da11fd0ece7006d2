"""remat-compile: plan, prove and run one training step under a budget in bytes."""

__version__ = "0.1.0"
