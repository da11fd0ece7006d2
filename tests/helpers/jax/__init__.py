"""Models, plans, arrays and sample calls for the JAX back end."""
