"""A convolution as products of spectra, with the discrete Fourier transform of small real images.

The transform is a few products with small matrices. For images of about a dozen pixels per side this is
faster than an FFT: many images are transformed at once, and they are the long side of every product. The rows
come first: a real transform of H numbers has one or two real coefficients (frequency 0, and H/2 if H is even)
and a pair for every other frequency. Then come the columns: a real row has W // 2 + 1 complex coefficients, a
pair of rows W. All others are conjugates of these.

A convolution of h × w pixels, taken where the kernel fits, is a circular one of period h × w, cut to where it
does not wrap. There, every frequency is its own product, over channels only. For 5 × 5 kernels this needs a
fifth of the multiplications, in the forward pass and in both backward passes. The transforms are orthogonal
up to a scale, so rounding errors do not grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcrab.simulate.engines.cnn_layers import Backward, Shape, padding_of

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """Pixels ``offset`` to ``offset + size`` of a period in each of two directions; outside is 0."""

    period: tuple[int, int]
    size: tuple[int, int]
    offset: tuple[int, int] = (0, 0)

    def angles(self, axis: int, frequencies: int) -> Matrix:
        """Return 2π · frequency · pixel / period, for the frequencies from 0 and the pixels of the window."""
        pixels = np.arange(self.size[axis]) + self.offset[axis]
        return 2 * np.pi * np.outer(np.arange(frequencies), pixels) / self.period[axis]


class Transform:
    """Maps images (height, width, many) in a window to (frequencies · 2, many); also its transpose.

    The two rows of a frequency are its real and imaginary part. With ``inverse`` the coefficients are
    weighted so that the *transpose* is the inverse transform, cut to the window.
    """

    def __init__(self, window: Window, *, inverse: bool = False) -> None:
        (height, width), self._size = window.period, window.size
        self._real = 2 - height % 2
        self._pairs = (height - self._real) // 2
        self._half = width // 2 + 1
        self._width = width
        self.frequencies = self._real * self._half + self._pairs * width
        rows, single, double = _rows(window), _single(window), _double(window)
        if inverse:
            rows *= np.where(np.arange(height) < self._real, 1, 2)[:, None] / (height * width)
            single *= np.repeat(_multiplicity(width), 2)[:, None]
        self._rows, self._single, self._double = map(_float, (rows, single, double))
        self._back = [_float(matrix.T) for matrix in (rows, single, double)]

    def apply(self, images: Tensor) -> Tensor:
        """Return the transform of (height, width, ...)."""
        h, w = self._size
        many = images.numel() // (h * w)
        rows = torch.mm(self._rows, images.reshape(h, w * many))
        spectrum = torch.empty(2 * self.frequencies, many)
        for matrix, before, after in zip(
            (self._single, self._double), self._of_rows(rows, many), self._of_spectrum(spectrum), strict=True
        ):
            torch.bmm(matrix.expand(len(before), -1, -1), before, out=after)
        return spectrum

    def transposed(self, spectrum: Tensor) -> Tensor:
        """Return the transpose of the transform: (height, width, many)."""
        h, w = self._size
        many = spectrum.shape[-1]
        of_rows, single, double = self._back
        rows = torch.empty(len(self._rows), w * many)
        for matrix, before, after in zip(
            (single, double), self._of_spectrum(spectrum), self._of_rows(rows, many), strict=True
        ):
            torch.bmm(matrix.expand(len(before), -1, -1), before, out=after)
        return torch.mm(of_rows, rows).view(h, w, many)

    def _of_rows(self, rows: Tensor, many: int) -> tuple[Tensor, Tensor]:
        """Return the real rows, and the pairs of rows."""
        real, pairs, w = self._real, self._pairs, self._size[1]
        return rows[:real].view(real, w, many), rows[real:].view(pairs, 2 * w, many)

    def _of_spectrum(self, spectrum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parts made from the real rows, and from the pairs."""
        real, pairs, half, width = self._real, self._pairs, self._half, self._width
        cut, many = 2 * half * real, spectrum.shape[-1]
        return spectrum[:cut].view(real, 2 * half, many), spectrum[cut:].view(pairs, 2 * width, many)


def _rows(window: Window) -> Matrix:
    """Return the real frequencies first, then cosine and minus sine of each other one."""
    height = window.period[0]
    angles = window.angles(0, height // 2 + 1)
    real = [0] if height % 2 else [0, height // 2]
    pairs = [each for f in range(1, (height + 1) // 2) for each in (np.cos(angles[f]), -np.sin(angles[f]))]
    return np.stack([*np.cos(angles[real]), *pairs])


def _single(window: Window) -> Matrix:
    """Map real columns to real and imaginary parts."""
    angles = window.angles(1, window.period[1] // 2 + 1)
    return np.stack([np.cos(angles), -np.sin(angles)], axis=1).reshape(-1, window.size[1])


def _double(window: Window) -> Matrix:
    """Map complex columns, all real parts before all imaginary ones, to real and imaginary parts."""
    angles = window.angles(1, window.period[1])
    cos, sin = np.cos(angles), np.sin(angles)
    real, imaginary = np.hstack([cos, sin]), np.hstack([-sin, cos])
    return np.stack([real, imaginary], axis=1).reshape(-1, 2 * window.size[1])


def _multiplicity(period: int) -> NDArray[np.int64]:
    """Return how often each frequency up to half occurs in a real signal: twice, but 0 and half once."""
    frequencies = np.arange(period // 2 + 1)
    return np.where((frequencies == 0) | (2 * frequencies == period), 1, 2)


def _float(matrix: Matrix) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float32))


LEAST_GAIN = 3  # times fewer multiplications, from which it is faster in practice


def fourier_is_faster(convolution: nn.Conv2d, shape: Shape) -> bool:
    """Return whether this needs few enough multiplications, per pixel and image, in one training step."""
    (above, beside), (height, width, _) = padding_of(convolution), shape
    outputs, inputs, rows, columns = convolution.weight.shape
    transforms = 2 * (inputs + outputs) * ((height + 2 * above) + 2 * (width + 2 * beside))
    products = 3 * 2 * inputs * outputs
    return LEAST_GAIN * (transforms + products) < 3 * rows * columns * inputs * outputs


class FourierConvolution:
    """A convolution without its bias."""

    def __init__(self, convolution: nn.Conv2d, shape: Shape) -> None:
        self._outputs, self._inputs, *kernel = convolution.weight.shape
        padding = padding_of(convolution)
        period = (shape[0] + 2 * padding[0], shape[1] + 2 * padding[1])
        size = (period[0] - kernel[0] + 1, period[1] - kernel[1] + 1)
        self.shape = (*size, self._outputs)
        self._before = Transform(Window(period, shape[:2], padding))
        self._after = Transform(Window(period, size), inverse=True)
        taps = torch.eye(kernel[0] * kernel[1]).view(*kernel, -1)
        self._taps = Transform(Window(period, (kernel[0], kernel[1]))).apply(taps)
        weight = torch.empty(*kernel, self._outputs, self._inputs)
        self.weights, self.as_torch = [weight], [weight.permute(2, 3, 0, 1)]
        self._images = self._kernels = torch.empty(0)

    @property
    def frequencies(self) -> int:
        """The number of products."""
        return self._before.frequencies

    def forward(self, x: Tensor) -> Tensor:
        """Return Ŷ = conj(Ŵ) X̂ at every frequency."""
        n = x.shape[-1]
        self._images = self._before.apply(x).view(self.frequencies, 2 * self._inputs, n)
        self._kernels = self._conjugates()
        spectrum = torch.bmm(self._kernels, self._images)
        return self._after.transposed(spectrum.view(-1, self._outputs * n)).view(*self.shape, n)

    def backward(self, gradient: Tensor) -> Backward:
        """Return the gradients of the weights and of the input, by transposes."""
        n = gradient.shape[-1]
        spectrum = self._after.apply(gradient).view(self.frequencies, 2 * self._outputs, n)
        weight = self._of_weight(torch.bmm(spectrum, self._images.transpose(1, 2)))
        images = torch.bmm(self._kernels.transpose(1, 2), spectrum).view(-1, self._inputs * n)
        before = self._before.transposed(images)
        return before.view(*before.shape[:2], self._inputs, n), [weight]

    def _conjugates(self) -> Tensor:
        """Return, per frequency, [[Re Ŵ, Im Ŵ], [−Im Ŵ, Re Ŵ]], which maps (Re X̂, Im X̂) to conj(Ŵ) X̂."""
        f, k, c = self.frequencies, self._outputs, self._inputs
        real, imaginary = torch.mm(self._taps, self.weights[0].view(-1, k * c)).view(f, 2, k, c).unbind(1)
        whole = torch.empty(f, 2, k, 2, c)
        whole[:, 0, :, 0] = real
        whole[:, 0, :, 1] = imaginary
        torch.neg(imaginary, out=whole[:, 1, :, 0])
        whole[:, 1, :, 1] = real
        return whole.view(f, 2 * k, 2 * c)

    def _of_weight(self, whole: Tensor) -> Tensor:
        """Return the gradient of the weight, from that of the matrices at each frequency."""
        f, k, c = self.frequencies, self._outputs, self._inputs
        blocks = whole.view(f, 2, k, 2, c)
        parts = torch.empty(f, 2, k, c)
        torch.add(blocks[:, 0, :, 0], blocks[:, 1, :, 1], out=parts[:, 0])
        torch.sub(blocks[:, 0, :, 1], blocks[:, 1, :, 0], out=parts[:, 1])
        return torch.mm(self._taps.t(), parts.view(2 * f, k * c)).view(self.weights[0].shape)
