"""The independent checker: it shares no code with the rest of the package (`spec/trust.md`)."""

from .check import Accepted, Bytes, Refused, check

__all__ = ["Accepted", "Bytes", "Refused", "check"]
