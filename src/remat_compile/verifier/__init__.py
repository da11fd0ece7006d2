"""Schedule -> proof or counter-example (z3). The second opinion on every plan.

It takes from `ir` the data and nothing else: aliasing, reads, writes, sizes and memory
are derived here from the statements. `spec/verification.md` states what is proven.
"""

from __future__ import annotations

from .certificate import certificate_sha256, check_certificate
from .prove import verify
from .verdict import Bound, ProvenPlan, Refuted, Undecided, Verdict

__all__ = [
    "Bound",
    "ProvenPlan",
    "Refuted",
    "Undecided",
    "Verdict",
    "certificate_sha256",
    "check_certificate",
    "verify",
]
