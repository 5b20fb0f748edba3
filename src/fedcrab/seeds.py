"""Randomness with an address: the same draw whichever method asks, in any order."""

from __future__ import annotations

import hashlib

import numpy as np


def rng_for(seed: int, *address: str | int) -> np.random.Generator:
    """The generator for one purpose, such as ``rng_for(seed, "batches", round, client)``.

    Streams of different addresses are independent; ``1`` and ``"1"`` are different addresses.
    """
    digest = hashlib.sha256(repr((int(seed), *address)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
