"""What a history keeps: windows of rounds, the rounds of a window, the clients of a round.

Crab's selective storage: a window closes when the loss has fallen by a share α, or after ``max_window``
rounds. In each window, the rounds that changed the model most are kept. In each round, the clients nearest to
the aggregate are selected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, isnan
from typing import Any

from fedcrab.errors import ConfigError, shown
from fedcrab.history.compact import check_bits


def _share(name: str, value: float) -> None:
    if not (isinstance(value, int | float) and 0 < value <= 1):
        raise ConfigError(f"{name} must be above 0 and at most 1, got {shown(value)}")


def _count(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a whole number of 1 or more, got {shown(value)}")


@dataclass(frozen=True, slots=True)
class Selective:
    """Crab's selection: keeps the models of the most important rounds, and no update vectors."""

    alpha: float = 0.1  # the loss must fall by this share to close a window; near 0, every fall closes one
    rounds: float = 0.6  # λ, the share of rounds kept; 1 keeps all
    clients: float = 0.7  # δ, the share of a round's clients selected; 1 selects all
    max_window: int = 10  # a window never has more rounds than this

    def __post_init__(self) -> None:
        _share("rounds", self.rounds)
        _share("clients", self.clients)
        _count("max_window", self.max_window)
        if not (isinstance(self.alpha, int | float) and 0 <= self.alpha < 1):
            raise ConfigError(f"alpha must be at least 0 and below 1, got {shown(self.alpha)}")

    def closes(self, reference: float, loss: float, length: int) -> bool:
        """Return whether a window of ``length`` rounds ends with this loss."""
        fell = isfinite(reference) and isfinite(loss) and loss <= (1 - self.alpha) * reference
        return fell or length >= self.max_window

    def choose(self, divergences: Mapping[int, float], *, seen: int, chosen: int) -> tuple[int, ...]:
        """Return the rounds of a closed window to keep.

        ``seen`` and ``chosen`` count the rounds in all earlier windows, so that rounding errors do not add
        up.
        """
        room = round(self.rounds * (seen + len(divergences))) - chosen
        by_change = sorted(divergences, key=lambda t: (-_least_if_nan(divergences[t]), t))
        return tuple(sorted(by_change[: max(room, 0)]))

    def select(self, cosines: Sequence[float]) -> tuple[bool, ...]:
        """Return which of a round's clients are selected, in the order of their ids."""
        if not len(cosines):
            return ()
        count = max(1, round(self.clients * len(cosines)))
        nearest = set(sorted(range(len(cosines)), key=lambda i: (-cosines[i], i))[:count])
        return tuple(i in nearest for i in range(len(cosines)))

    def keeps_updates(self, round: int) -> bool:  # noqa: ARG002
        """Return False: Crab keeps no update vectors, because norms and geometry are enough."""
        return False


def _least_if_nan(divergence: float) -> float:
    return float("-inf") if isnan(divergence) else divergence


@dataclass(frozen=True, slots=True)
class Every:
    """Keeps every n-th round with all its clients, and the update vectors of round 0 only (FedEraser)."""

    n: int = 2

    def __post_init__(self) -> None:
        _count("n", self.n)

    def closes(self, reference: float, loss: float, length: int) -> bool:  # noqa: ARG002
        """Return True: each round is decided at once."""
        return True

    def choose(self, divergences: Mapping[int, float], *, seen: int, chosen: int) -> tuple[int, ...]:  # noqa: ARG002
        """Return the rounds 0, n, 2n and so on."""
        return tuple(t for t in divergences if t % self.n == 0)

    def select(self, cosines: Sequence[float]) -> tuple[bool, ...]:
        """Select all clients."""
        return (True,) * len(cosines)

    def keeps_updates(self, round: int) -> bool:
        """Return whether this is round 0, which FedEraser replays from its stored updates."""
        return round == 0


@dataclass(frozen=True, slots=True)
class Everything:
    """Keeps all rounds, all clients and all update vectors (FedRecover)."""

    def closes(self, reference: float, loss: float, length: int) -> bool:  # noqa: ARG002
        """Return True: each round is decided at once."""
        return True

    def choose(self, divergences: Mapping[int, float], *, seen: int, chosen: int) -> tuple[int, ...]:  # noqa: ARG002
        """Keep all rounds."""
        return tuple(divergences)

    def select(self, cosines: Sequence[float]) -> tuple[bool, ...]:
        """Select all clients."""
        return (True,) * len(cosines)

    def keeps_updates(self, round: int) -> bool:  # noqa: ARG002
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class Compact:
    """Keeps every update of every round in a few bits, and what :class:`Selective` keeps (corrected replay).

    Windows, rounds and clients are chosen exactly as by ``Selective`` with the same settings.
    """

    bits: int = 4  # per number: 2, 4 or 8
    alpha: float = 0.1
    rounds: float = 0.6
    clients: float = 0.7
    max_window: int = 10

    def __post_init__(self) -> None:
        check_bits(self.bits)
        self._selective()

    def _selective(self) -> Selective:
        return Selective(self.alpha, self.rounds, self.clients, self.max_window)

    def closes(self, reference: float, loss: float, length: int) -> bool:
        """Close a window as ``Selective`` does."""
        return self._selective().closes(reference, loss, length)

    def choose(self, divergences: Mapping[int, float], *, seen: int, chosen: int) -> tuple[int, ...]:
        """Return the rounds whose models are kept exactly, as ``Selective`` does."""
        return self._selective().choose(divergences, seen=seen, chosen=chosen)

    def select(self, cosines: Sequence[float]) -> tuple[bool, ...]:
        """Select clients as ``Selective`` does."""
        return self._selective().select(cosines)

    def keeps_updates(self, round: int) -> bool:  # noqa: ARG002
        """Return True, even for rounds whose models are dropped."""
        return True


Selection = Selective | Every | Everything | Compact
KINDS: Mapping[str, type[Selection]] = {
    "selective": Selective,
    "every": Every,
    "everything": Everything,
    "compact": Compact,
}


def to_table(selection: Selection) -> dict[str, Any]:
    """Return a selection as plain values, for the ledger."""
    kind = next(name for name, cls in KINDS.items() if isinstance(selection, cls))
    return {"kind": kind, **asdict(selection)}


def from_table(table: Mapping[str, Any]) -> Selection:
    """Return the selection that :func:`to_table` wrote."""
    settings = dict(table)
    kind = settings.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(f"unknown selection {kind!r}; known are {', '.join(KINDS)}")
    try:
        return KINDS[kind](**settings)
    except TypeError as error:
        raise ConfigError(f"selection {kind!r}: {error}") from error
