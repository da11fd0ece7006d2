"""Schedule -> proof or counter-example (z3). The second opinion on every plan.

It takes from `ir` the data and nothing else: aliasing, reads, writes, sizes and memory
are derived here from the statements. `spec/verification.md` states what is proven.
"""

from __future__ import annotations

from .certificate import accept_certificate, certificate_sha256, check_certificate
from .prove import prove_largest, verify
from .task import Scope
from .verdict import Bound, Disagreement, Largest, ProvenPlan, Refuted, Undecided, Verdict

__all__ = [
    "Bound",
    "Disagreement",
    "Largest",
    "ProvenPlan",
    "Refuted",
    "Scope",
    "Undecided",
    "Verdict",
    "accept_certificate",
    "certificate_sha256",
    "check_certificate",
    "prove_largest",
    "verify",
]
