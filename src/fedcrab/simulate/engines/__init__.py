"""Chooses the engine that trains a module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from fedcrab.native import library
from fedcrab.simulate.engines.cnn import (
    ChannelsLast,
    CnnEngine,
    batch_last,
    channels_last,
    in_channels_last,
    rewritten,
    takes_channels_last,
)
from fedcrab.simulate.engines.cnn_compiled import CompiledCnnEngine, compiled, compiled_is_faster
from fedcrab.simulate.engines.mlp import MlpEngine, layers_of
from fedcrab.simulate.engines.plain import Engine, LocalTraining, PlainEngine
from fedcrab.simulate.machine import Workplace


def engine_for(
    module: nn.Module,
    local: LocalTraining,
    *,
    seed: int,
    shape: Sequence[int] = (),
    workplace: Workplace | None = None,
) -> Engine:
    """Return the fastest engine that computes the same as the plain loop for this module.

    ``shape`` is the shape of an example; the fastest engine for CNNs needs it. The fast engines are for CPUs;
    other devices use the plain loop.
    """
    workplace = workplace or Workplace()
    if workplace.device != "cpu":
        return PlainEngine(module, local, seed=seed, device=workplace.device)
    layers = layers_of(module)
    if layers is not None:
        return MlpEngine(layers, local, seed=seed, cache_bytes=workplace.cache_bytes)
    network = rewritten(module)
    if network is not None:
        engine = CnnEngine(ChannelsLast(network), batch_last(network, shape), local, seed=seed)
        kernels = library()
        in_c = compiled(kernels, network, shape) if kernels is not None else None
        if kernels is None or in_c is None or not compiled_is_faster(kernels, network):
            return engine
        return CompiledCnnEngine(in_c, engine, local, seed=seed)
    if takes_channels_last(module):
        return PlainEngine(in_channels_last(module), local, seed=seed, arranged=channels_last)
    return PlainEngine(module, local, seed=seed)


@contextmanager
def one_thread() -> Iterator[None]:
    """Train on one thread, because rounding can depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
