"""The architectures of `benchmarks/models.py`, made by their own constructors, small and seeded."""
