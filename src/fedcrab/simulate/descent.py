"""SGD over a list of tensors: a few fused calls a step in place of an optimiser object.

The same arithmetic as ``torch.optim.SGD``, whose import alone costs a worker a second or two.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedcrab.simulate.local import LocalTraining


class Descent:
    """The descent of one client in one round, from rest."""

    def __init__(self, parameters: Sequence[Tensor], local: LocalTraining) -> None:
        self._parameters, self._local = [p.detach() for p in parameters], local
        self._velocities = [torch.zeros_like(p) for p in self._parameters] if local.momentum else []

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Descend: v ← momentum·v + g + decay·w, then w ← w − lr·v; a tensor without gradient stays."""
        local = self._local
        used = [place for place, gradient in enumerate(gradients) if gradient is not None]
        parameters = [self._parameters[place] for place in used]
        steps = [gradient for gradient in gradients if gradient is not None]
        if local.weight_decay:
            steps = list(torch._foreach_add(steps, parameters, alpha=local.weight_decay))
        if local.momentum:
            velocities = [self._velocities[place] for place in used]
            torch._foreach_mul_(velocities, local.momentum)
            torch._foreach_add_(velocities, steps)
            steps = velocities
        torch._foreach_add_(parameters, steps, alpha=-local.learning_rate)
