"""Addressed random generators: a draw depends only on its seed and address, not on what was drawn before."""

from __future__ import annotations

import hashlib

import numpy as np


def rng_for(seed: int, *address: str | int) -> np.random.Generator:
    """Return the generator for one purpose, such as ``rng_for(seed, "batches", round, client)``.

    Generators of different addresses are independent; ``1`` and ``"1"`` are different addresses.
    """
    digest = hashlib.sha256(repr((int(seed), *address)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
