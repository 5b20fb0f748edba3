"""Undetected attackers: how far any k of the unnamed clients can have moved the model.

Let B be the clients not named, m their mean in a round, q_c their shares of it. If k clients W of B are
malicious too, the honest mean is that of the rest, and

    ‖mean of B without W - m‖ = ‖Σ_W q_c·(u_c - m)‖ / (1 - Σ_W q_c) ≤ d

d bounds numerator and denominator separately. With x_c = q_c·(u_c - m), ‖Σ_W x_c‖² = Σ_{c,c' in W} ⟨x_c,
x_c'⟩ is at most the sum of the k largest r_c, where r_c = ‖x_c‖² + the k - 1 largest positive ⟨x_c, x_c'⟩. So
for any W, s ≤ s(named) + d and φ ≥ φ(named) - d in every round. Also, s is at most the distance of the mean
of all from the farthest update in B, because a mean lies among its terms. A decision by these bounds goes at
least as far back as one with W named, for any W of at most k clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import ceil

import numpy as np

from fedcrab.errors import ConfigError
from fedcrab.rollback.influence import NEVER_HONEST, CountedRounds, Influence, UnnamedMembers
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

ROUNDING = 1e-9  # a bound is this much larger than necessary, so that rounding breaks no tie


def undetected_count(unfound: float | str, clients: int, named: int) -> int:
    """Return a number of clients unchanged, or a share of all clients rounded up."""
    asked = _number(unfound) if isinstance(unfound, str) else unfound
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        raise _refused(unfound)
    count = ceil(asked * clients * (1 - ROUNDING)) if 0 < asked < 1 else asked
    if count < 0 or (isinstance(count, float) and not count.is_integer()):
        raise _refused(unfound)
    if count and count >= clients - named:
        raise ConfigError(
            f"unfound (--undetected): {named} of {clients} clients are named, and all others would be "
            "malicious; leave at least one honest client"
        )
    return int(count)


def _number(text: str) -> float:
    """Parse ``2``, ``0.2`` or ``20%``."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError as error:
        raise _refused(text) from error
    if text.endswith("%") and number >= 100:
        raise _refused(text)
    return number / 100 if text.endswith("%") else number


def _refused(unfound: object) -> ConfigError:
    return ConfigError(
        "unfound (--undetected) must be a number of clients such as 2, or a share such as 20%; got "
        f"{str(unfound)[:40]!r}"
    )


def with_undetected(
    evidence: CountedRounds,
    malicious: Collection[ClientId],
    found: Influence,
    unfound: int,
    since: Mapping[ClientId, int] = NEVER_HONEST,
) -> Influence:
    """Return the influence with s as large and φ as small as any choice of others could make them."""
    rounds = evidence.remaining(malicious, since)
    rows = zip(rounds, found.sensitivity.tolist(), found.honest.tolist(), strict=True)
    worst = np.array([_worst(r, s, phi, unfound) for r, s, phi in rows]).reshape(-1, 2)
    return replace(found, sensitivity=worst[:, 0], honest=worst[:, 1])


def _worst(remaining: UnnamedMembers, s: float, phi: float, unfound: int) -> tuple[float, float]:
    """Return the bounds of s and φ in one round."""
    there = len(remaining.rows)
    if not there:
        return s, phi
    farthest = float(np.linalg.norm(remaining.rows - remaining.everyone, axis=1).max())
    if unfound >= there:
        alone = float(np.linalg.norm(remaining.everyone - remaining.against))
        return max(s, farthest, alone) * (1 + ROUNDING), 0.0
    d = largest_mean_shift(remaining.rows, remaining.shares, unfound) * (1 + ROUNDING)
    return max(s, min(s + d, farthest * (1 + ROUNDING))), max(phi - d, 0.0)


def largest_mean_shift(rows: Matrix64, shares: Matrix64, unfound: int) -> float:
    """Return d: how far the mean can move if any k of these are left out, k less than their number."""
    apart = shares[:, None] * (rows - shares @ rows)
    products = apart @ apart.T
    alone = np.diagonal(products).copy()
    np.fill_diagonal(products, 0.0)
    together = alone + _largest(np.maximum(products, 0.0), unfound - 1)
    return float(np.sqrt(_largest(together, unfound)) / (1 - _largest(shares, unfound)))


def _largest(values: Matrix64, count: int) -> Matrix64:
    """Return the sum of the k largest numbers of each row."""
    if count == 0:
        return np.zeros(values.shape[:-1])
    split = values.shape[-1] - count
    return np.asarray(np.partition(values, split, axis=-1)[..., split:].sum(axis=-1))
