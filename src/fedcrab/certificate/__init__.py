"""Certificates: what is proven about a recovery, under which assumptions, and what is not.

A statement is a term (:mod:`fedcrab.certificate.term`): a number, its assumptions, and whether it is proven.
A certificate collects the terms of a recovery, with the hashes of its history, plan and models.
:func:`certify` computes it, and :func:`verify_certificate` computes it again and compares.
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
