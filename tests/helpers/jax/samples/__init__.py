"""Sample calls of every ATen operator that JAX can run; importing this fills `SAMPLES`."""

from helpers.jax.samples import math, nn, recorded, reductions, shapes
from helpers.jax.samples.calls import RANDOM, SAMPLES, Call, samples

__all__ = ["RANDOM", "SAMPLES", "Call", "math", "nn", "recorded", "reductions", "samples", "shapes"]
