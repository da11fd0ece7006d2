"""The second start of a model: what a step is known by before it is captured, and what is kept."""
