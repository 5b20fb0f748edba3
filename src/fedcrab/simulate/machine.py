"""What a simulation uses of the machine: worker processes, memory for their caches, a device.

The number of workers and the memory do not change any bit of a result. Another device rounds differently.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from fedcrab.errors import ConfigError

DEVICES = ("cpu", "cuda", "mps")
MEGABYTE = 1 << 20
SHARE = 8  # the default cache is this fraction of the machine's memory
LEAST_CACHE, MOST_CACHE = 256 * MEGABYTE, 4096 * MEGABYTE  # limits of the default


@dataclass(frozen=True, slots=True)
class Workplace:
    """What one process that trains clients may use."""

    device: str = "cpu"
    cache_bytes: int = LEAST_CACHE  # of tensors made from clients' examples, kept between rounds


def check_device(name: str) -> None:
    """Raise ``ConfigError`` if a device is unknown or not available."""
    if name not in DEVICES:
        raise ConfigError(f"no device {name!r}; there are {', '.join(DEVICES)}")
    if not _is_available(name):
        raise ConfigError(
            f"device {name!r} is not available on this machine to torch {torch.__version__}; "
            'use device = "cpu"'
        )


def _is_available(name: str) -> bool:
    if name == "cuda":
        return torch.cuda.is_available()
    return name == "cpu" or torch.backends.mps.is_available()


def default_workers(device: str = "cpu") -> int:
    """Return FEDCRAB_WORKERS, or by default one worker process per core; one if they would share a device."""
    given = _number("FEDCRAB_WORKERS")
    if given is not None:
        return given
    return cores() if device == "cpu" else 1


def default_cache() -> int:
    """Return the cache size in bytes for all workers: FEDCRAB_CACHE_MB, or 1/8 of memory, 256 MB to 4 GB."""
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
    """Return the machine's memory in bytes; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
