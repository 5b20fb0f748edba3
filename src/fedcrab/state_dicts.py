"""Convert between torch modules, state dicts and the flat float32 vector that fedcrab works on.

This module does not import torch: a tensor is anything with ``detach`` and ``new_tensor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.types import Field, Layout, Vector

STATISTICS = ("running_mean", "running_var")  # torch's names for the buffers of BatchNorm


def is_flat(model: object) -> bool:
    """Return whether a model is already a vector."""
    return isinstance(model, np.ndarray | list | tuple)


def state_layout(model: Any) -> Layout:
    """Return the layout of a torch module or a state dict: which slice of the flat vector is which tensor.

    The parameters of a module count as trained unless they are frozen. A state dict does not say what is
    trained, so everything counts except integers and BatchNorm's statistics.
    """
    trained = None
    if hasattr(model, "named_parameters"):
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return Layout(tuple(_field(name, array, trained) for name, array in _arrays(model).items()))


def _field(name: str, array: NDArray[np.generic], trained: set[str] | None) -> Field:
    whole = array.dtype.kind != "f"
    guessed = not whole and name.rpartition(".")[2] not in STATISTICS
    return Field(
        name,
        array.shape,
        trained=guessed if trained is None else name in trained and not whole,
        integer=whole,
    )


def flatten(model: Any, layout: Layout | None = None) -> Vector:
    """Return a torch module, a state dict or a vector as one flat float32 vector.

    Raises ``ConfigError`` if the model does not match ``layout``.
    """
    if is_flat(model):
        return _vector(model, layout)
    arrays = _arrays(model)
    layout = state_layout(model) if layout is None else layout
    wanted, found = {f.name: f.shape for f in layout.fields}, {name: a.shape for name, a in arrays.items()}
    if wanted != found:
        differing = sorted({name for name, _ in wanted.items() ^ found.items()})
        raise ConfigError(
            f"this is not the recorded model: {', '.join(differing[:3])} missing, new or of another shape"
        )
    vector = np.empty(layout.size, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit becomes infinite
        for name, view in layout.views(vector).items():
            view[...] = arrays[name]
    return vector


def _vector(model: Any, layout: Layout | None) -> Vector:
    vector = np.asarray(model, np.float32)
    if vector.ndim != 1 or (layout is not None and len(vector) != layout.size):
        wanted = "one dimension" if layout is None else f"{layout.size} numbers"
        raise ConfigError(f"a flat model must have {wanted}, got shape {vector.shape}")
    return vector


def unflatten(vector: Vector, like: Any) -> dict[str, Any]:
    """Return a flat vector as a state dict; each array has the type and device that it has in ``like``.

    ``like`` is a torch module or a state dict. With a history or a layout, the arrays are numpy arrays.
    """
    layout = getattr(getattr(like, "charter", None), "layout", like)
    if isinstance(layout, Layout):
        whole = {f.name for f in layout.fields if f.integer}
        views = layout.views(_vector(vector, layout))
        return {
            name: cast_array(view, np.int64 if name in whole else np.float32) for name, view in views.items()
        }
    named, layout = _named(like), state_layout(like)
    views = layout.views(_vector(vector, layout))
    return {name: _as(views[str(name)], value) for name, value in named.items()}


def _as(view: NDArray[np.float32], value: Any) -> Any:
    """Return the numbers as an array or tensor of the same kind as ``value``."""
    if not hasattr(value, "new_tensor"):
        return cast_array(view, np.asarray(value).dtype)
    numbers = np.array(view) if value.is_floating_point() else np.array(np.rint(view), np.int64)
    return value.new_tensor(numbers.tolist() if numbers.ndim == 0 else numbers, dtype=value.dtype)


def cast_array(view: NDArray[np.float32], dtype: Any) -> NDArray[np.generic]:
    """Return a copy of this type; for integers, the numbers are rounded."""
    kind = np.dtype(dtype)
    return np.array(view if kind.kind == "f" else np.rint(view), kind, order="C")


def _named(model: Any) -> Mapping[str, Any]:
    named = model.state_dict() if hasattr(model, "state_dict") else model
    if not isinstance(named, Mapping) or not named:
        raise ConfigError(
            f"a model must be a torch module, a state dict or a flat vector; got {type(model).__name__}"
        )
    return named


def _arrays(model: Any) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of a module or a state dict as numpy arrays, by name."""
    return {str(name): _numpy(str(name), value) for name, value in _named(model).items()}


def _numpy(name: str, value: Any) -> NDArray[np.generic]:
    if hasattr(value, "detach"):
        plain = value.detach().cpu()
        value = (plain.float() if plain.is_floating_point() else plain).numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"tensor {name!r} has type {array.dtype}; a model has floats and integers only")
    return array
