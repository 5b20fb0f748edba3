"""What of a machine a simulation takes: worker processes, memory for what they keep, a device.

None of it changes which clients train on what. The number of workers and the memory change no bit of a
result; another device rounds differently.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from fedcrab.errors import ConfigError

DEVICES = ("cpu", "cuda", "mps")
MEGABYTE = 1 << 20
SHARE = 8  # one part in so many of the machine's memory, unless told otherwise
LEAST_CACHE, MOST_CACHE = 256 * MEGABYTE, 4096 * MEGABYTE  # that is taken without being told


@dataclass(frozen=True, slots=True)
class Workplace:
    """What one process that trains clients may use."""

    device: str = "cpu"
    cache_bytes: int = LEAST_CACHE  # of tensors made of clients' examples, kept from round to round


def check_device(name: str) -> None:
    """Refuse a device that there is not, here or anywhere."""
    if name not in DEVICES:
        raise ConfigError(f"no device {name!r}; there are {', '.join(DEVICES)}")
    if not _is_available(name):
        raise ConfigError(
            f"device {name!r} is not available on this machine to torch {torch.__version__}; "
            'take device = "cpu"'
        )


def _is_available(name: str) -> bool:
    if name == "cuda":
        return torch.cuda.is_available()
    return name == "cpu" or torch.backends.mps.is_available()


def default_workers(device: str = "cpu") -> int:
    """The number in FEDCRAB_WORKERS, else one worker process per core; one alone where a device is shared."""
    given = _number("FEDCRAB_WORKERS")
    if given is not None:
        return given
    return cores() if device == "cpu" else 1


def default_cache() -> int:
    """Bytes for all workers together: FEDCRAB_CACHE_MB, else an eighth of the memory, 256 MB to 4 GB."""
    given = _number("FEDCRAB_CACHE_MB")
    if given is not None:
        return given * MEGABYTE
    return min(max(_memory() // SHARE, LEAST_CACHE), MOST_CACHE)


def _number(variable: str) -> int | None:
    given = os.environ.get(variable, "")
    if given and not given.isdecimal():
        raise ConfigError(f"{variable} must be a whole number, 0 or more, got {given!r}")
    return int(given) if given else None


def _memory() -> int:
    """Bytes of the machine's memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
