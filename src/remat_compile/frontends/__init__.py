"""Documented names of the frontends; the code stands in `capture`."""
