"""The exceptions of fedcrab. Each message is one sentence: what is wrong, where, and what to do."""

from __future__ import annotations


class FedcrabError(Exception):
    """The base class of every error that fedcrab raises on purpose."""


class ConfigError(FedcrabError):
    """A setting or an argument is invalid."""


class RecordError(FedcrabError):
    """A round cannot be recorded as given."""


class HistoryError(FedcrabError):
    """A history cannot be created, written or read."""


class DamagedError(HistoryError):
    """A history is not what its own hashes say it should be."""


class FleetError(FedcrabError):
    """The clients cannot be reached, or too few of them answer."""


def shown(value: object, longest: int = 40) -> str:
    """Return any value as a short printable text for a message. Never raises."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a whole number of {value.bit_length()} bits"[:longest]
    try:
        text = ascii(value)
    except Exception:  # whatever a stranger's __repr__ does
        text = type(value).__name__
    return text[:longest] if text.isprintable() else type(value).__name__[:longest]
