"""The estimate of replay by its formulas, with the matrices formed and number by number."""

import numpy as np


def bfgs(pairs: list, v: np.ndarray) -> np.ndarray:
    """B·v by the BFGS recursion, B formed."""
    w, g = pairs[-1]
    B = (g @ w) / (w @ w) * np.eye(len(v))
    for w, g in pairs:
        Bw = B @ w
        B = B - np.outer(Bw, Bw) / (w @ Bw) + np.outer(g, g) / (g @ w)
    return B @ v


def secant(pairs: list, v: np.ndarray) -> np.ndarray:
    """S·v: least squares over the pairs at length 1, and σ of the newest for the rest of v."""
    V, C = (np.array([each[i] / np.linalg.norm(each[0]) for each in pairs]).T for i in (0, 1))
    a = np.linalg.inv(V.T @ V + 0.01 * np.eye(len(pairs))) @ V.T @ v
    return C @ a + V[:, -1] @ C[:, -1] * (v - V @ a)


def naive_estimate(pairs: list, v: np.ndarray, mean: np.ndarray) -> np.ndarray | None:
    """The mean of both, at most as long as v and as the mean, number by number within the measured slopes."""
    inward = [(w, c) for w, c in pairs if w @ c < 0]
    if not inward or not v.any():
        return None
    both = (bfgs(inward, v) + secant(inward, v)) / 2
    both = both * min(
        1, np.linalg.norm(mean) / np.linalg.norm(both), np.linalg.norm(v) / np.linalg.norm(both)
    )
    for i, number in enumerate(both):
        ends = [0.0, *(c[i] / w[i] * v[i] for w, c in inward if w[i])]
        both[i] = min(max(number, min(ends)), max(ends))
    return both
