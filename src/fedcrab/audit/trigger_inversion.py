"""What was planted: the smallest patch that turns examples into one class, for every class at once.

Neural Cleanse (Wang et al., S&P 2019): for each class k

    min over m, p of  CE(f((1 − m)·x + m·p), k) + λ_k·‖m‖₁,    x of the other classes, m in [0, 1]

A planted trigger is far smaller than what imitates a class without one. Departs from it: all classes are
inverted in one batch; λ_k follows the success of every batch; the sign is the smallest mask beside the
*median* of the others and beside the next, since the published index (median absolute deviations) does not
tell poisoned models from clean ones. It finds patches that work on examples of most classes, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcrab.audit.flat_model import BATCH, Classify, Images, Labels
from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for

ALARM = 0.46  # of the median mask: a smaller one is taken for a planted trigger
CERTAIN = 0.35  # of the median mask: a smaller one is a planted trigger beyond doubt
NEXT = 0.75  # of the second smallest mask: a planted one is smaller
DOUBT = 0.65  # of the median mask: a smaller one is a trigger if some clients clearly taught it
WORKS = 0.8  # of the examples that it must turn, to be one
USUAL = NormalDist(log(0.75), 0.12)  # of log ratios of clean models; docs/forensics.md has the trainings
ENOUGH = 6  # classes, below which the median of the other masks says less
FEWEST_CLASSES = 3  # a mask is judged beside the median of the others
SURE = 0.999  # the most that is claimed
WANTED = 0.95  # of a batch that a mask must turn while it shrinks
UP, DOWN, LEAST, MOST = 1.15, 1.25, 1e-6, 1e2  # steps and range of λ
MEMORY = 0.7  # of the running success
RATE, BETAS = 0.2, (0.5, 0.9)  # of Adam
FEWEST, STALL, STALLED = 60, 30, 0.02  # steps; stop when no mask shrank by this share in that many


@dataclass(frozen=True, slots=True)
class Inversion:
    """The smallest working patch of each class, and what its size says."""

    masks: NDArray[np.float32]  # (classes, height, width), 0 to 1
    patterns: NDArray[np.float32]  # (classes, channels, height, width)
    success: NDArray[np.float64]  # (classes,): of the examples of other classes that the patch turns
    steps: int
    notes: tuple[str, ...] = field(default=())  # what it cannot see

    @property
    def sizes(self) -> NDArray[np.float64]:
        """‖m‖₁ of each class; all pixels where nothing turns enough examples."""
        whole = float(np.prod(self.masks.shape[1:]))
        sizes = self.masks.sum(axis=(1, 2), dtype=np.float64)
        return np.where(self.success >= WORKS, sizes, whole)

    @property
    def label(self) -> int:
        """The class of the smallest mask."""
        return int(np.argmin(self.sizes))

    @property
    def ratio(self) -> float:
        """The smallest mask beside the median of the others: about 0.8 without a trigger."""
        sizes = self.sizes
        return float(sizes[self.label] / max(float(np.median(np.delete(sizes, self.label))), 1e-9))

    @property
    def beside_next(self) -> float:
        """The smallest mask beside the second smallest: where classes differ, several are small."""
        smallest, following = np.sort(self.sizes)[:2]
        return float(smallest / max(float(following), 1e-9))

    @property
    def planted(self) -> bool:
        """Whether this is taken for a planted trigger."""
        return self.ratio < ALARM and self.beside_next < NEXT and bool(self.success[self.label] >= WORKS)

    @property
    def certain(self) -> bool:
        """Whether it is a planted trigger beyond doubt: no clean model has had a mask nearly as small.

        Never with fewer than ENOUGH classes: there the median is of few masks.
        """
        return self.planted and self.ratio < CERTAIN and len(self.masks) >= ENOUGH

    @property
    def suspicious(self) -> bool:
        """Whether it is small enough to ask who taught it; by itself this is no sign of a trigger."""
        return self.ratio < DOUBT and bool(self.success[self.label] >= WORKS)

    @property
    def confidence(self) -> float:
        """How rarely a clean model would have so small a mask; 0 where nothing is planted."""
        return min(1 - USUAL.cdf(log(max(self.ratio, 1e-9))), SURE) if self.planted else 0.0

    @property
    def mask(self) -> NDArray[np.float32]:
        """(height, width) of the smallest mask."""
        return np.asarray(self.masks[self.label])

    @property
    def pattern(self) -> NDArray[np.float32]:
        """(channels, height, width) of the smallest mask."""
        return np.asarray(self.patterns[self.label])

    def stamp(self, x: Images) -> Images:
        """Copies of these examples with the smallest patch on them: (1 − m)·x + m·p."""
        images = np.asarray(x, np.float32).reshape(len(x), *self.pattern.shape)
        stamped = images + self.mask * (self.pattern - images)
        return np.asarray(stamped.reshape(np.shape(x)), np.float32)

    def to_table(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "planted": self.planted,
            "class": self.label,
            "ratio": round(self.ratio, 4),
            "beside_next": round(self.beside_next, 4),
            "alarm": ALARM,
            "confidence": self.confidence,
            "success": float(self.success[self.label]),
            "sizes": [round(float(size), 2) for size in self.sizes],
            "mask": np.round(self.mask.astype(float), 3).tolist(),
            "pattern": np.round(self.pattern.astype(float), 3).tolist(),
            "notes": list(self.notes),
        }


def invert(
    classify: Classify,
    x: Images,
    y: Labels,
    *,
    classes: int,
    image: tuple[int, int, int] | None = None,
    steps: int = 150,
    batch: int = 32,
    seed: int = 0,
) -> Inversion:
    """The smallest patch of each class, from probe examples ``x`` with their true labels ``y``.

    ``classify`` gives logits for a batch and must be differentiable, such as a torch module; a module is in
    evaluation mode meanwhile, and left as it was. ``image`` is (channels, height, width) of examples that
    are flat. Raises ConfigError for examples that are not images: no patch can be looked for there.
    """
    shape = _image_shape(x, image)
    _check(x, y, classes, steps, batch)
    search = _Search(classify, np.asarray(x, np.float32), np.asarray(y), classes, shape)
    with _evaluating(classify):
        done = search.run(steps, batch, seed)
        success = np.array([search.success(k) for k in range(classes)])
    masks, patterns = search.found_mask[:, 0].numpy(), search.found_pattern.numpy()
    return Inversion(masks, patterns, success, done, _notes(classes, success))


@contextmanager
def _evaluating(classify: Classify) -> Iterator[None]:
    """A module in evaluation mode for as long as this lasts: its running statistics are left alone."""
    parts = [*classify.modules()] if isinstance(classify, nn.Module) else []
    before = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, training in zip(parts, before, strict=True):
            part.training = training


class _Adam:
    """Kingma and Ba, 2015, on one tensor. torch.optim imports a compiler first, which takes seconds."""

    def __init__(self, free: Tensor) -> None:
        self._free, self._steps = free, 0
        self._mean, self._square = torch.zeros_like(free), torch.zeros_like(free)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        self._steps += 1
        self._mean.lerp_(gradient, 1 - BETAS[0])
        self._square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        deviation = (self._square / (1 - BETAS[1] ** self._steps)).sqrt_() + 1e-8
        self._free.addcdiv_(self._mean, deviation, value=-RATE / (1 - BETAS[0] ** self._steps))


class _Search:
    """All classes side by side: each has its own mask, pattern, examples and λ, so none sees another."""

    def __init__(
        self, classify: Classify, x: Images, y: Labels, classes: int, shape: tuple[int, int, int]
    ) -> None:
        self.classify, self.classes, self.given = classify, classes, x.shape[1:]
        self.images = torch.tensor(x).view(len(x), *shape)
        self.low = self.images.amin((0, 2, 3), keepdim=True)
        self.range = self.images.amax((0, 2, 3), keepdim=True) - self.low
        self.others = [np.flatnonzero(y != k) for k in range(classes)]
        self.found_mask = torch.ones(classes, 1, *shape[1:])
        self.found_pattern = self.low + 0.5 * self.range + torch.zeros(classes, *shape)
        self.smallest = torch.full((classes,), float(shape[1] * shape[2]))

    def run(self, steps: int, batch: int, seed: int) -> int:
        """Shrink the masks; after how many steps it stopped."""
        rngs = [rng_for(seed, "trigger inversion", k) for k in range(self.classes)]
        starts = [
            rng.normal(scale=0.1, size=(1 + self.images.shape[1], *self.images.shape[2:])) for rng in rngs
        ]
        free = torch.tensor(np.array(starts), dtype=torch.float32)
        free[:, 0] -= 1
        free.requires_grad_()
        descent = _Adam(free)
        price, running = torch.full((self.classes,), 1e-2), torch.zeros(self.classes)
        sizes = []
        for step in range(steps):
            rows = np.stack([rng.choice(some, batch) for rng, some in zip(rngs, self.others, strict=True)])
            mask, pattern = (
                torch.sigmoid(2 * free[:, :1]),
                self.low + self.range * torch.sigmoid(2 * free[:, 1:]),
            )
            loss, hits = self._loss(mask, pattern, self.images[torch.from_numpy(rows)])
            descent.step(torch.autograd.grad((loss + price * mask.sum((1, 2, 3))).sum(), free)[0])
            running = MEMORY * running + (1 - MEMORY) * hits
            price = torch.where(hits >= WANTED, price * UP, price / DOWN).clamp(LEAST, MOST)
            self._keep(mask.detach(), pattern.detach(), running)
            sizes.append(self.smallest)
            if step + 1 >= FEWEST and bool((self.smallest >= (1 - STALLED) * sizes[-STALL]).all()):
                return step + 1
        return steps

    def _loss(self, mask: Tensor, pattern: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy to the own class, and the share that is taken for it, of each class's batch."""
        stamped = some + mask[:, None] * (pattern[:, None] - some)
        logits = self._logits(stamped.flatten(0, 1))
        wanted = torch.arange(self.classes).repeat_interleave(some.shape[1])
        each = nn.functional.cross_entropy(logits, wanted, reduction="none")
        hits = (logits.argmax(1) == wanted).float()
        return each.view(self.classes, -1).mean(1), hits.view(self.classes, -1).mean(1)

    def _keep(self, mask: Tensor, pattern: Tensor, running: Tensor) -> None:
        size = mask.sum((1, 2, 3))
        better = (running >= WANTED) & (size < self.smallest)
        self.smallest = torch.where(better, size, self.smallest)
        self.found_mask[better], self.found_pattern[better] = mask[better], pattern[better]

    def success(self, k: int) -> float:
        """How many examples of other classes the smallest patch of this class turns into it."""
        some = self.images[torch.from_numpy(self.others[k])]
        with torch.no_grad():
            stamped = some + self.found_mask[k] * (self.found_pattern[k] - some)
            pieces = [self._logits(piece).argmax(1) == k for piece in torch.split(stamped, BATCH)]
        return float(torch.cat(pieces).float().mean())

    def _logits(self, images: Tensor) -> Tensor:
        logits = self.classify(images.view(len(images), *self.given))
        if logits.shape[1] != self.classes:
            raise ConfigError(f"the model has {logits.shape[1]} classes, not {self.classes}")
        return logits


def not_invertible(x: Images, classes: int) -> str | None:
    """Why no patch can be looked for in such examples; None where it can."""
    if np.ndim(x) != 4:
        return (
            f"examples of shape {np.shape(x)[1:]} are not images (channels, height, width): a planted patch "
            "cannot be looked for; bring examples of the misbehaviour instead"
        )
    if classes < FEWEST_CLASSES:
        return f"a mask is judged beside those of two or more other classes, got {classes} classes"
    return None


def _image_shape(x: Images, image: tuple[int, int, int] | None) -> tuple[int, int, int]:
    shape = np.shape(x)[1:] if np.ndim(x) == 4 else image
    if shape is None or len(shape) != 3:
        raise ConfigError(not_invertible(x, FEWEST_CLASSES) or f"not images of shape {shape}")
    if int(np.prod(shape)) != int(np.prod(np.shape(x)[1:])):
        raise ConfigError(f"examples of shape {np.shape(x)[1:]} are not images of shape {tuple(shape)}")
    return shape[0], shape[1], shape[2]


def _check(x: Images, y: Labels, classes: int, steps: int, batch: int) -> None:
    if np.shape(y) != (len(x),) or not np.isfinite(x).all():
        raise ConfigError(f"needs one label for each finite example, got {len(x)} and {np.shape(y)}")
    if classes < FEWEST_CLASSES:
        raise ConfigError(
            f"a mask is judged beside those of two or more other classes, got {classes} classes"
        )
    if len(np.unique(y)) < 2 or np.min(y) < 0 or np.max(y) >= classes:
        raise ConfigError(f"the labels must be of two or more classes from 0 to {classes - 1}")
    if steps < 1 or batch < 1:
        raise ConfigError(f"steps and batch must be 1 or more, got {steps} and {batch}")


def _notes(classes: int, success: NDArray[np.float64]) -> tuple[str, ...]:
    said = ["Only patches that work on examples of most classes are found; a trigger of another kind is not."]
    if classes < ENOUGH:
        said.append(f"With {classes} classes the median of the others is of few masks: less sure.")
    if (lost := int((success < WORKS).sum())) > classes // 2:
        said.append(f"For {lost} of {classes} classes no patch was found at all: the model tells too little.")
    return tuple(said)
