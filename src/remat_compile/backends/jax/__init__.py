"""JAX backend: ATen operators as JAX functions."""
