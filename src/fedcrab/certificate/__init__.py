"""What is proven about a recovery, under which assumptions, and what is not.

Statements are terms (:mod:`fedcrab.certificate.term`), each with what it assumes and a flag. A
certificate gathers them, bound by hashes to history, plan and models, and :func:`verify_certificate`
recomputes it.
"""

from fedcrab.certificate.assumptions import Assumptions
from fedcrab.certificate.certificate import Certificate, certify
from fedcrab.certificate.document import read_certificate, write_certificate
from fedcrab.certificate.noise import analytic_sigma, classical_sigma, noised
from fedcrab.certificate.term import HEURISTIC, SOUND, UNPROVABLE, Term
from fedcrab.certificate.verify import verify_certificate

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
