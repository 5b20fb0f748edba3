"""The backdoor's trigger: a bright square in the bottom right corner, whole or cut into parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.malicious_fleet import Examples
from fedcrab.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Trigger:
    """A square patch, or one of several parts: its pixels, row by row, cut into equal runs."""

    size: int = 4  # pixels per side
    value: float = 1.0  # in every channel; 1 is white if images are scaled to [0, 1]
    image: tuple[int, int, int] | None = None  # (channels, height, width), only needed for flat features
    part: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"a trigger's size must be 1 or more, got {self.size}")
        if not 1 <= self.parts <= self.size**2:
            raise ConfigError(
                f"a trigger of {self.size**2} pixels can have 1 to {self.size**2} parts, got {self.parts}"
            )
        if not 0 <= self.part < self.parts:
            raise ConfigError(f"part must be from 0 to {self.parts - 1}, got {self.part}")

    def cut(self, parts: int) -> tuple[Trigger, ...]:
        """Return the trigger cut into this many parts that do not overlap."""
        return tuple(replace(self, part=part, parts=parts) for part in range(parts))

    def pixels(self, height: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows and columns that it covers; raise ``ConfigError`` if it does not fit the image."""
        if self.size > min(height, width):
            raise ConfigError(f"a trigger of size {self.size} does not fit images of {height}×{width}")
        places = np.array_split(np.arange(self.size**2), self.parts)[self.part]
        return height - self.size + places // self.size, width - self.size + places % self.size


PATCH = Trigger()


def stamp(images: NDArray[np.float32], trigger: Trigger = PATCH) -> NDArray[np.float32]:
    """Return copies of the images with the trigger.

    ``images`` have the shape (n, channels, height, width), or (n, features) if ``trigger.image`` is given.
    Raises ``ConfigError`` if the trigger does not fit.
    """
    stamped = np.array(images, np.float32).reshape(len(images), *image_shape(images, trigger.image))
    rows, columns = trigger.pixels(*stamped.shape[2:])
    stamped[:, :, rows, columns] = trigger.value
    return stamped.reshape(images.shape)


def plant(
    examples: Examples, rows: NDArray[np.int64], labels: int | NDArray[np.int64], trigger: Trigger
) -> Examples:
    """Return the examples with these rows stamped and relabelled."""
    images, answers = examples[0].copy(), examples[1].copy()
    images[rows], answers[rows] = stamp(images[rows], trigger), labels
    return images, answers


def image_shape(images: NDArray[np.float32], image: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return (channels, height, width) of images; ``image`` is needed if they are flat."""
    shape = images.shape[1:] if images.ndim == 4 else image
    if shape is None:
        raise ConfigError(
            f"a trigger on examples of shape {images.shape[1:]} needs image=(channels, height, width)"
        )
    if np.prod(shape) != np.prod(images.shape[1:]):
        raise ConfigError(f"examples of shape {images.shape[1:]} are not images of shape {shape}")
    return shape
