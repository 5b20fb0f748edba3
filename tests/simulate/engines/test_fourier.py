"""The transform against numpy's, frequency by frequency."""

import numpy as np
import pytest
import torch

from fedcrab.simulate.engines.fourier import Transform, Window

PERIODS = [(1, 1), (2, 3), (3, 2), (5, 5), (8, 8), (12, 12), (7, 10), (10, 7)]


def images(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def frequencies(height, width):
    """Which frequencies come out, in their order."""
    real = [0] if height % 2 else [0, height // 2]
    ones = [(f, g) for f in real for g in range(width // 2 + 1)]
    return ones + [(f, g) for f in range(1, (height + 1) // 2) for g in range(width)]


@pytest.mark.parametrize("period", PERIODS, ids=str)
def test_equal_to_numpy(period):
    x = images(*period, 4)
    expected = np.fft.fft2(x.numpy().astype(np.float64), axes=(0, 1))
    real, imaginary = Transform(Window(period, period)).apply(x).view(-1, 2, 4).unbind(1)
    got = real.numpy() + 1j * imaginary.numpy()
    assert len(got) == len(frequencies(*period))
    for value, (f, g) in zip(got, frequencies(*period), strict=True):
        assert np.abs(value - expected[f, g]).max() < 1e-5


@pytest.mark.parametrize("period", PERIODS, ids=str)
def test_the_inverse_gives_the_images_back(period):
    x = images(*period, 3)
    there = Transform(Window(period, period))
    back = Transform(Window(period, period), inverse=True)
    assert (back.transposed(there.apply(x)) - x).abs().max() < 1e-5


@pytest.mark.parametrize("inverse", [False, True])
def test_a_window_is_the_whole_with_zeros_around_it(inverse):
    period, size, offset = (9, 12), (4, 5), (3, 2)
    whole = torch.zeros(*period, 3)
    whole[3:7, 2:7] = images(*size, 3)
    cut = Transform(Window(period, size, offset), inverse=inverse)
    full = Transform(Window(period, period), inverse=inverse)
    spectrum = full.apply(whole)
    assert (cut.apply(whole[3:7, 2:7]) - spectrum).abs().max() < 1e-5
    assert (cut.transposed(spectrum) - full.transposed(spectrum)[3:7, 2:7]).abs().max() < 1e-4


@pytest.mark.parametrize("period", PERIODS, ids=str)
def test_transposed_is_the_transpose(period):
    """⟨T x, s⟩ = ⟨x, Tᵀ s⟩ for any x and s."""
    transform = Transform(Window(period, period))
    x, s = images(*period, 2), images(2 * transform.frequencies, 2)
    assert (transform.apply(x) * s).sum().item() == pytest.approx(
        (x * transform.transposed(s)).sum().item(), rel=1e-4, abs=1e-4
    )
