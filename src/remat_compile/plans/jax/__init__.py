"""What ties the JAX backend to models: their values, files, and the ready callable."""
