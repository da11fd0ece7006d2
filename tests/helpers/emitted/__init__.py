"""Generated code to look at, and faults put into it."""
