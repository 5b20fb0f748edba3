"""Linear models and MLPs by compiled kernels (``native/mlp.c``): one call trains a client for a whole round.

The first layer takes the form with the least work, which depends on the client's examples only:

- dense: every feature;
- sparse: only the features of an example that are not 0;
- dual: after some steps of SGD the weight is W₀ − Σ dᵢ·xᵢᵀ, where dᵢ sums the errors at example i, each times
  its learning rate, and the bias is b₀ − Σ dᵢ. The output at example j is then

      zⱼ = W₀·xⱼ + b₀ − Σ (xⱼ·xᵢ + 1)·dᵢ

  The kernel of the products xⱼ·xᵢ + 1 is the same in every round and is cached, so a step only costs the sum:
  one product as wide as the client has examples, instead of two as wide as it has features.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcrab.errors import ConfigError
from fedcrab.native import address
from fedcrab.simulate.engines.client_cache import ClientCache
from fedcrab.simulate.engines.mlp_step import LinearLayer
from fedcrab.simulate.engines.plain import LocalTraining, Task, orders
from fedcrab.vectors import is_finite

MOST_COLUMNS = 1 << 16  # a column's number has 16 bits
MOST_NUMBERS = (1 << 31) - 1  # of a batch; they are counted with 32 bits
MOST_EXAMPLES = 1024  # of a kernel, which then has 4 MB
GAIN = 1.2  # the dual form must save a sixth, because its kernel may have to be computed again
LINE = 64  # bytes of a cache line


class _Training(ctypes.Structure):
    """``Training`` of native/mlp.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("layers", "examples", "epochs", "batch")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("sizes", "biased", "start", "x", "begins", "columns", "values"),
                *("kernel", "labels", "orders", "update"),
            )
        ),
        ("rate", ctypes.c_float),
    ]


@dataclass(frozen=True, slots=True)
class Nonzeros:
    """The numbers of a client's examples that are not 0, example by example; empty if there are too many."""

    count: int
    begins: NDArray[np.int64]
    columns: NDArray[np.uint16]
    values: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return self.begins.nbytes + self.columns.nbytes + self.values.nbytes

    def addresses(self) -> tuple[int, ...]:
        """Where the kernel finds them."""
        return tuple(int(array.ctypes.data) for array in (self.begins, self.columns, self.values))


class CompiledMlpEngine:
    """Trains one client after the other; each result equals that of the plain loop up to rounding."""

    together = 1

    def __init__(
        self,
        library: ctypes.CDLL,
        layers: Sequence[LinearLayer],
        local: LocalTraining,
        *,
        seed: int,
        cache_bytes: int,
    ) -> None:
        self._library, self._layers, self._local, self._seed = library, layers, local, seed
        library.mlp_bytes.restype = library.nonzeros.restype = ctypes.c_int64
        library.mlp_nonzero_work.restype = ctypes.c_float
        self._nonzero_work = float(library.mlp_nonzero_work())
        self._kernels = ClientCache[Tensor](cache_bytes * 2 // 3)
        self._nonzeros = ClientCache[Nonzeros](cache_bytes // 3)
        self._memory = np.empty(0, np.uint8)
        self._sizes = np.array([layers[0].inputs, *(layer.outputs for layer in layers)], np.int64)
        self._biased = np.array([layer.bias is not None for layer in layers], np.uint8)

    def train(self, start: Tensor, tasks: Sequence[Task], *, round: int, epochs: int) -> None:
        """Train every task from ``start`` and write local minus start into its row."""
        start, finite = start.contiguous(), is_finite(start.numpy())
        for task in tasks:
            drawn = list(orders(self._seed, round, task.client, count=len(task.y), epochs=epochs))
            order = torch.stack(drawn) if drawn else torch.empty(0, dtype=torch.int64)
            self._train_client(start, task, order, finite=finite)

    def _train_client(self, start: Tensor, task: Task, order: Tensor, *, finite: bool) -> None:
        x, y = task.x.reshape(len(task.y), -1).contiguous(), task.y.contiguous()
        self._check(x, y)
        epochs = len(order)
        # 0 times infinity is not 0, so features that are 0 count if a weight is not finite.
        sparse = self._sparse(task, x) if finite else None
        kernel = self._kernel(task, x) if finite and self._dual(x, sparse, epochs) else None
        found = task.update if task.update.is_contiguous() else torch.empty_like(start)
        training = _Training(
            *(len(self._layers), len(y), epochs, min(self._local.batch, max(1, len(y)))),
            *(self._sizes.ctypes.data, self._biased.ctypes.data, start.data_ptr()),
            *(x.data_ptr(), *(sparse.addresses() if sparse else (None,) * 3)),
            *(None if kernel is None else kernel.data_ptr(), y.data_ptr(), order.data_ptr()),
            *(found.data_ptr(), self._local.learning_rate),
        )
        self._kernel_call(training)
        if found is not task.update:
            task.update.copy_(found)

    def _kernel_call(self, training: _Training) -> None:
        """Train in memory that is used again, because new memory is slow to fill."""
        needed = self._library.mlp_bytes(ctypes.byref(training)) + LINE
        if len(self._memory) < needed:
            self._memory = np.empty(needed, np.uint8)
        begin = -(-self._memory.ctypes.data // LINE) * LINE
        self._library.train_mlp(ctypes.byref(training), ctypes.c_void_p(begin))

    def _check(self, x: Tensor, y: Tensor) -> None:
        """The kernel would read and write beyond its memory."""
        features, classes = int(self._sizes[0]), int(self._sizes[-1])
        if x.shape[1] != features or x.dtype != torch.float32:
            raise ConfigError(f"the model needs {features} float32 features, got {x.shape[1]} of {x.dtype}")
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
            raise ConfigError(
                f"labels must be between 0 and {classes - 1}, got {int(y.min())} to {int(y.max())}"
            )

    def _sparse(self, task: Task, x: Tensor) -> Nonzeros | None:
        """Return the examples without zeros, or None if that is more work."""
        if x.shape[1] > MOST_COLUMNS or x.numel() > MOST_NUMBERS:
            return None
        found = self._nonzeros.get(task.held, lambda: self._without_zeros(x))
        return found if len(found.values) == found.count else None

    def _without_zeros(self, x: Tensor) -> Nonzeros:
        begins = np.empty(len(x) + 1, np.int64)
        columns, values = np.empty(x.numel() + 1, np.uint16), np.empty(x.numel() + 1, np.float32)
        given = (ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(len(x)), ctypes.c_int64(x.shape[1]))
        count = int(self._library.nonzeros(*given, address(begins), address(columns), address(values)))
        kept = count if count * self._nonzero_work < 2 * x.numel() else 0
        return Nonzeros(count, begins, columns[:kept].copy(), values[:kept].copy())

    def _dual(self, x: Tensor, sparse: Nonzeros | None, epochs: int) -> bool:
        """Return whether the dual form is less work.

        The choice must not depend on cached data, because the forms round differently.
        """
        if len(self._layers) < 2 or not 0 < len(x) <= MOST_EXAMPLES:
            return False
        once = self._nonzero_work * sparse.count / len(x) if sparse else 2 * x.shape[1]
        return epochs * once >= GAIN * (once + epochs * len(x))

    def _kernel(self, task: Task, x: Tensor) -> Tensor:
        bias = self._layers[0].bias is not None

        def make() -> Tensor:
            kernel = torch.mm(x, x.mT)
            return kernel.add_(1) if bias else kernel

        return self._kernels.get(task.held, make)
