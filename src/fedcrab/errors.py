"""What can go wrong, each as one sentence that says what, where and what to do."""

from __future__ import annotations


class FedcrabError(Exception):
    """The parent of every error that fedcrab raises on purpose."""


class ConfigError(FedcrabError):
    """A setting or an argument is not usable."""


class RecordError(FedcrabError):
    """A round cannot be recorded as it was given."""


class HistoryError(FedcrabError):
    """A history cannot be created, written or read."""


class DamagedError(HistoryError):
    """A history is not what its own hashes say it should be."""


class FleetError(FedcrabError):
    """The clients cannot be reached, or too few of them answer."""
