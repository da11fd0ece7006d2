"""Synthetic training steps for the planners, exhaustive oracles, and the matrix of all planners."""
