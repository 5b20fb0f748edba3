"""Trigger inversion: per class, the smallest patch that makes the model predict this class.

Neural Cleanse (Wang et al., S&P 2019): for each class k

    min over m, p of  CE(f((1 − m)·x + m·p), k) + λ_k·‖m‖₁,    x of the other classes, m in [0, 1]

A planted trigger has a far smaller mask than a patch that imitates a class. Differences from the paper: all
classes are inverted in one batch. λ_k adapts to the success of every batch. The signal is the smallest mask
over the *median* of the others, and over the second smallest, because the published index (median absolute
deviations) does not separate poisoned models from clean ones. Only patches that work on examples of most
classes are found.
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

from fedcrab.attack.trigger import image_shape
from fedcrab.audit.flat_model import BATCH, Classify, Images, Labels
from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for

ALARM = 0.42  # of the median mask: a smaller mask counts as a planted trigger; clean resnets have 0.44
CERTAIN = 0.35  # of the median mask: a smaller mask is certainly a planted trigger
NEXT = 0.75  # of the second smallest mask: a planted trigger is smaller
DOUBT = 0.65  # of the median mask: a smaller mask is a trigger if some clients clearly taught it
WORKS = 0.8  # share of examples whose class a patch must change
USUAL = NormalDist(log(0.75), 0.12)  # log ratios of clean models; docs/forensics.md lists the trainings
ENOUGH = 6  # classes; with fewer, the median of the other masks is less reliable
FEWEST_CLASSES = 3  # a mask is compared with the median of the others
MAX_CONFIDENCE = 0.999
WANTED = 0.95  # share of a batch whose class a mask must change while it shrinks
UP, DOWN, LEAST, MOST = 1.15, 1.25, 1e-6, 1e2  # steps and range of λ
MEMORY = 0.7  # of the running success
RATE, BETAS = 0.2, (0.5, 0.9)  # of Adam
FEWEST, STALL, STALLED = 60, 30, 0.02  # after FEWEST steps: stop if no mask shrank by STALLED in STALL steps


@dataclass(frozen=True, slots=True)
class Inversion:
    """The smallest working patch per class, and whether the smallest of all is a planted trigger."""

    masks: NDArray[np.float32]  # (classes, height, width), 0 to 1
    patterns: NDArray[np.float32]  # (classes, channels, height, width)
    success: NDArray[np.float64]  # (classes,): share of examples of other classes that the patch changes
    steps: int
    notes: tuple[str, ...] = field(default=())  # the limits of the inversion

    @property
    def sizes(self) -> NDArray[np.float64]:
        """‖m‖₁ per class; the number of pixels if no patch works."""
        whole = float(np.prod(self.masks.shape[1:]))
        sizes = self.masks.sum(axis=(1, 2), dtype=np.float64)
        return np.where(self.success >= WORKS, sizes, whole)

    @property
    def label(self) -> int:
        """The class of the smallest mask."""
        return int(np.argmin(self.sizes))

    @property
    def ratio(self) -> float:
        """The smallest mask over the median of the others: about 0.8 without a trigger."""
        sizes = self.sizes
        return float(sizes[self.label] / max(float(np.median(np.delete(sizes, self.label))), 1e-9))

    @property
    def beside_next(self) -> float:
        """The smallest mask over the second smallest; near 1 if several classes have a small mask."""
        smallest, second = np.sort(self.sizes)[:2]
        return float(smallest / max(float(second), 1e-9))

    @property
    def planted(self) -> bool:
        """Whether the smallest mask counts as a planted trigger."""
        return self.ratio < ALARM and self.beside_next < NEXT and bool(self.success[self.label] >= WORKS)

    @property
    def certain(self) -> bool:
        """Whether it is certainly a planted trigger: no clean model had a mask nearly as small.

        Never with fewer than ENOUGH classes, because the median is then of few masks.
        """
        return self.planted and self.ratio < CERTAIN and len(self.masks) >= ENOUGH

    @property
    def suspicious(self) -> bool:
        """Whether it is small enough to ask who taught it; this alone is no sign of a trigger."""
        return self.ratio < DOUBT and bool(self.success[self.label] >= WORKS)

    @property
    def confidence(self) -> float:
        """The share of clean models whose smallest mask is larger; 0 if no trigger is planted."""
        return min(1 - USUAL.cdf(log(max(self.ratio, 1e-9))), MAX_CONFIDENCE) if self.planted else 0.0

    @property
    def mask(self) -> NDArray[np.float32]:
        """The smallest mask, (height, width)."""
        return np.asarray(self.masks[self.label])

    @property
    def pattern(self) -> NDArray[np.float32]:
        """The pattern of the smallest mask, (channels, height, width)."""
        return np.asarray(self.patterns[self.label])

    def stamp(self, x: Images) -> Images:
        """Return copies of these examples with the smallest patch on them: (1 − m)·x + m·p."""
        images = np.asarray(x, np.float32).reshape(len(x), *self.pattern.shape)
        stamped = images + self.mask * (self.pattern - images)
        return np.asarray(stamped.reshape(np.shape(x)), np.float32)

    def to_table(self) -> dict[str, Any]:
        """Return the inversion as plain values, for JSON."""
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
    """Return the smallest patch per class, from probe examples ``x`` with their true labels ``y``.

    ``classify`` maps a batch to logits and must be differentiable, for example a torch module; a module is
    put in evaluation mode meanwhile. ``image`` is (channels, height, width) if the examples are flat. The
    search takes at most ``steps`` steps with ``batch`` examples per class. Raises ConfigError if the
    examples are not images, or the labels do not fit.
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
    """Put a module in evaluation mode meanwhile, so that its running statistics do not change."""
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
    """Adam (Kingma and Ba, 2015) on one tensor. Importing torch.optim takes seconds, for a compiler."""

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
    """The search for all classes in one batch; each class has its own mask, pattern, examples and λ."""

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
        """Shrink the masks, and return the number of steps."""
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
        """Return the cross-entropy of each class's batch, and the share that is classified as that class."""
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
        """Return the share of examples of other classes that the smallest patch turns into class ``k``."""
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
    """Return why no patch can be searched for in such examples; None if it can."""
    if np.ndim(x) != 4:
        return (
            f"examples of shape {np.shape(x)[1:]} are not images (channels, height, width), so there is no "
            "search for a planted patch; give examples of the misbehaviour instead"
        )
    return _too_few(classes)


def _too_few(classes: int) -> str | None:
    if classes >= FEWEST_CLASSES:
        return None
    return f"a mask is compared with those of two or more other classes, got {classes} classes"


def _image_shape(x: Images, image: tuple[int, int, int] | None) -> tuple[int, int, int]:
    if np.ndim(x) != 4 and image is None:
        raise ConfigError(not_invertible(x, FEWEST_CLASSES))
    shape = image_shape(x, image)
    if len(shape) != 3:
        raise ConfigError(f"image must be (channels, height, width), got {shape}")
    return shape[0], shape[1], shape[2]


def _check(x: Images, y: Labels, classes: int, steps: int, batch: int) -> None:
    if np.shape(y) != (len(x),) or not np.isfinite(x).all():
        raise ConfigError(
            f"needs finite examples with one label each, got {len(x)} examples and labels of shape "
            f"{np.shape(y)}"
        )
    if reason := _too_few(classes):
        raise ConfigError(reason)
    if len(np.unique(y)) < 2 or np.min(y) < 0 or np.max(y) >= classes:
        raise ConfigError(f"the labels must be of two or more classes, from 0 to {classes - 1}")
    if steps < 1 or batch < 1:
        raise ConfigError(f"steps and batch must be 1 or more, got {steps} and {batch}")


def _notes(classes: int, success: NDArray[np.float64]) -> tuple[str, ...]:
    notes = ["Only patches that work on examples of most classes are found, no other kind of trigger."]
    if classes < ENOUGH:
        notes.append(f"With {classes} classes the median of the other masks is less reliable.")
    if (failed := int((success < WORKS).sum())) > classes // 2:
        notes.append(f"No patch was found for {failed} of {classes} classes, so the masks say little.")
    return tuple(notes)
