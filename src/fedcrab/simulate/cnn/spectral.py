"""A convolution as products of spectra.

A convolution of h × w pixels, taken where the kernel fits, is a circular one of period h × w, cut to where
it does not wrap. There every frequency is a product of its own, over channels only: for 5 × 5 kernels a fifth
of the multiplications, in the pass forward and in both passes back. The transforms are orthogonal up to a
scale, so rounding errors do not grow in them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedcrab.simulate.cnn.fourier import Transform, Window
from fedcrab.simulate.cnn.layers import Backward, Shape, padding_of

LEAST_GAIN = 3  # times fewer multiplications, from where it is the faster one in practice


def pays(convolution: nn.Conv2d, shape: Shape) -> bool:
    """Whether this takes few enough multiplications, per pixel and image, of one step of training."""
    (above, beside), (height, width, _) = padding_of(convolution), shape
    outputs, inputs, rows, columns = convolution.weight.shape
    transforms = 2 * (inputs + outputs) * ((height + 2 * above) + 2 * (width + 2 * beside))
    products = 3 * 2 * inputs * outputs
    return LEAST_GAIN * (transforms + products) < 3 * rows * columns * inputs * outputs


class Spectral:
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
        """How many products there are."""
        return self._before.frequencies

    def forward(self, x: Tensor) -> Tensor:
        """Ŷ = conj(Ŵ) X̂ at every frequency."""
        n = x.shape[-1]
        self._images = self._before.apply(x).view(self.frequencies, 2 * self._inputs, n)
        self._kernels = self._conjugates()
        spectrum = torch.bmm(self._kernels, self._images)
        return self._after.transposed(spectrum.view(-1, self._outputs * n)).view(*self.shape, n)

    def backward(self, gradient: Tensor) -> Backward:
        """The transposes of all that, for the weights and for the input."""
        n = gradient.shape[-1]
        spectrum = self._after.apply(gradient).view(self.frequencies, 2 * self._outputs, n)
        weight = self._of_weight(torch.bmm(spectrum, self._images.transpose(1, 2)))
        images = torch.bmm(self._kernels.transpose(1, 2), spectrum).view(-1, self._inputs * n)
        before = self._before.transposed(images)
        return before.view(*before.shape[:2], self._inputs, n), [weight]

    def _conjugates(self) -> Tensor:
        """At each frequency [[Re Ŵ, Im Ŵ], [−Im Ŵ, Re Ŵ]]: what takes (Re X̂, Im X̂) to that of conj(Ŵ) X̂."""
        f, k, c = self.frequencies, self._outputs, self._inputs
        real, imaginary = torch.mm(self._taps, self.weights[0].view(-1, k * c)).view(f, 2, k, c).unbind(1)
        whole = torch.empty(f, 2, k, 2, c)
        whole[:, 0, :, 0] = real
        whole[:, 0, :, 1] = imaginary
        torch.neg(imaginary, out=whole[:, 1, :, 0])
        whole[:, 1, :, 1] = real
        return whole.view(f, 2 * k, 2 * c)

    def _of_weight(self, whole: Tensor) -> Tensor:
        """The gradient for the weight, from that for the matrices at each frequency."""
        f, k, c = self.frequencies, self._outputs, self._inputs
        blocks = whole.view(f, 2, k, 2, c)
        parts = torch.empty(f, 2, k, c)
        torch.add(blocks[:, 0, :, 0], blocks[:, 1, :, 1], out=parts[:, 0])
        torch.sub(blocks[:, 0, :, 1], blocks[:, 1, :, 0], out=parts[:, 1])
        return torch.mm(self._taps.t(), parts.view(2 * f, k * c)).view(self.weights[0].shape)
