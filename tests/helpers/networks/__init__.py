"""The architectures of `helpers.models`."""
