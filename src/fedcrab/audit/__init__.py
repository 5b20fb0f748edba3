"""Forensics: which trigger was planted in a model, when, and which clients taught it. Needs torch."""

from fedcrab.audit.attribution import Attribution, attribute
from fedcrab.audit.examples import read_examples
from fedcrab.audit.flat_model import FlatModel
from fedcrab.audit.lessons import Lessons, lessons
from fedcrab.audit.taught import taught_examples, taught_trigger
from fedcrab.audit.timeline import Timeline, timeline
from fedcrab.audit.trigger_inversion import Inversion, invert, not_invertible

__all__ = [
    "Attribution",
    "FlatModel",
    "Inversion",
    "Lessons",
    "Timeline",
    "attribute",
    "invert",
    "lessons",
    "not_invertible",
    "read_examples",
    "taught_examples",
    "taught_trigger",
    "timeline",
]
