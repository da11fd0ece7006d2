"""Schedule -> proof or counter-example (z3, cvc5). The second opinion on every plan.

It takes from `ir` the data and nothing else: aliasing, reads, writes, sizes and memory
are derived here from the statements. `spec/verification.md` states what is proven.
"""

from __future__ import annotations

from .assumptions import Assumption, assumptions, cost_assumptions
from .certificate import accept_certificate, certificate_sha256, check_certificate
from .inquiry import Script
from .obligation import Obligation, is_at_sample_only, obligation_of
from .plan_proof import Scope
from .prove import prove_largest, scripts, verify, verify_with_scripts
from .solvers.solver import Choice
from .verdict import Bound, Disagreement, Largest, ProvenPlan, Refuted, Undecided, Verdict

__all__ = [
    "Assumption",
    "Bound",
    "Choice",
    "Disagreement",
    "Largest",
    "Obligation",
    "ProvenPlan",
    "Refuted",
    "Scope",
    "Script",
    "Undecided",
    "Verdict",
    "accept_certificate",
    "assumptions",
    "certificate_sha256",
    "check_certificate",
    "cost_assumptions",
    "is_at_sample_only",
    "obligation_of",
    "prove_largest",
    "scripts",
    "verify",
    "verify_with_scripts",
]
