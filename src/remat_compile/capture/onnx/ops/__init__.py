"""Lowerings by kind of operator; each file enters its functions into the table."""
