"""What can be proved of a recovery, under what, and what cannot.

Statements are terms (:mod:`fedcrab.certify.term`), each with what it assumes and a flag. A certificate
gathers them, bound by hashes to history, plan and models, and :func:`verify_certificate` recomputes it.
"""

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.certificate import Certificate, certify
from fedcrab.certify.document import read_certificate, write_certificate
from fedcrab.certify.noise import analytic_sigma, classical_sigma, noised
from fedcrab.certify.term import HEURISTIC, SOUND, UNPROVABLE, Term
from fedcrab.certify.verification import verify_certificate

__all__ = [
    "HEURISTIC",
    "SOUND",
    "UNPROVABLE",
    "Assumptions",
    "Certificate",
    "Term",
    "analytic_sigma",
    "certify",
    "classical_sigma",
    "noised",
    "read_certificate",
    "verify_certificate",
    "write_certificate",
]
