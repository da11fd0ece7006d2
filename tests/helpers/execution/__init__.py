"""Captures that many tests plan again, and executions that are compared with eager."""
