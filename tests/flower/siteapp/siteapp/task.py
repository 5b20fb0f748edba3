"""What a site does: a few steps of softmax regression on its own examples, the same whoever asks."""

import numpy as np

from fedcrab.seeds import rng_for

FEATURES, CLASSES = 12, 4
SHAPES = {"weight": (FEATURES, CLASSES), "bias": (CLASSES,), "steps": ()}
TRUTH = rng_for(7, "truth").normal(size=(FEATURES, CLASSES))

Arrays = dict[str, np.ndarray]


def examples(site: int | str) -> tuple[np.ndarray, np.ndarray]:
    rng = rng_for(7, "examples", str(site))
    x = rng.normal(size=(40 + 5 * len(str(site)) + hash_of(site), FEATURES))
    return x, (x @ TRUTH + 0.3 * rng.normal(size=(len(x), CLASSES))).argmax(1)


def hash_of(site: int | str) -> int:
    return int(rng_for(7, "count", str(site)).integers(20))


def initial() -> Arrays:
    return {
        "weight": np.zeros((FEATURES, CLASSES), np.float32),
        "bias": np.zeros(CLASSES, np.float32),
        "steps": np.array(0, np.int64),
    }


def probabilities(arrays: Arrays, x: np.ndarray) -> np.ndarray:
    logits = x @ arrays["weight"].astype(np.float64) + arrays["bias"]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def loss(arrays: Arrays, x: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(probabilities(arrays, x)[np.arange(len(y)), y]).mean())


def local(arrays: Arrays, site: int | str, t: int, epochs: int, *, attacks: bool) -> tuple[Arrays, int]:
    """The site's model after its epochs of round t; an attacker pushes towards wrong classes, and hard."""
    x, y = examples(site)
    y = (CLASSES - 1 - y) if attacks else y
    weight, bias = arrays["weight"].astype(np.float64), arrays["bias"].astype(np.float64)
    for order in (rng_for(7, "order", t, str(site), e).permutation(len(y)) for e in range(epochs)):
        for rows in np.array_split(order, 4):
            error = probabilities({"weight": weight, "bias": bias}, x[rows])
            error[np.arange(len(rows)), y[rows]] -= 1
            weight = weight - 0.5 * x[rows].T @ error / len(rows)
            bias = bias - 0.5 * error.mean(0)
    if attacks:
        weight, bias = (a + 3 * (b - a) for a, b in ((arrays["weight"], weight), (arrays["bias"], bias)))
    done = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
    return {**done, "steps": arrays.get("steps", 0) + 4 * epochs}, len(y)
