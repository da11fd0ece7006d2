"""Links between the JAX backend and models: their values, files, and the ready callable."""
