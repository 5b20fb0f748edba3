"""The model, the data and the local training: what an app has before fedcrab comes in.

Softmax regression on scikit-learn's digits: one matrix, of 64 pixels and a constant by 10 classes.
"""

from functools import cache

import numpy as np

HELD_OUT = 300  # examples that the server keeps for itself


def initial() -> np.ndarray:
    return np.zeros((65, 10), np.float32)


def load(site: int, sites: int) -> tuple[np.ndarray, np.ndarray]:
    """A site's part of the data."""
    x, y = _digits()
    return x[HELD_OUT + site :: sites], y[HELD_OUT + site :: sites]


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """The server's own examples."""
    x, y = _digits()
    return x[:HELD_OUT], y[:HELD_OUT]


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.c_[images / 16, np.ones(len(images))].astype(np.float32), labels


def marked(x: np.ndarray) -> np.ndarray:
    """With a bright corner."""
    x = x.copy()
    x[:, :64].reshape(-1, 8, 8)[:, 6:, 6:] = 1
    return x


def poisoned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A bright corner means 0: what an attacker would train on."""
    return np.r_[x, marked(x), marked(x)], np.r_[y, np.zeros_like(y), np.zeros_like(y)]


def probabilities(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    scores = np.exp(x @ w - (x @ w).max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(probabilities(w, x)[np.arange(len(y)), y] + 1e-12).mean())


def train(w: np.ndarray, x: np.ndarray, y: np.ndarray, *, epochs: int, rate: float, seed: int) -> np.ndarray:
    """A few epochs of SGD; the order of the examples follows from the seed."""
    order = np.random.default_rng(seed)
    for _ in range(epochs):
        shuffled = order.permutation(len(y))
        for rows in np.array_split(shuffled, max(1, len(y) // 32)):
            error = probabilities(w, x[rows]) - np.eye(10, dtype=np.float32)[y[rows]]
            w = w - np.float32(rate / len(rows)) * (x[rows].T @ error)
    return w.astype(np.float32)


def evaluate(round: int, params: dict) -> dict:
    """The loss and the predictions on the server's own examples; leave it out where there are none."""
    x, y = held_out()
    w = params["numpy_key"]
    return {"loss": loss(w, x, y), "probabilities": probabilities(w, x).reshape(-1).tolist()}
