"""Loggers for the steps of a training or a recovery: TensorBoard, MLflow, Weights & Biases.

Each writes files and needs no server; each needs the extra of its name. A logger is called with a step, as
``on_step`` of :func:`fedcrab.train.train` and of ``fedcrab.recover``, or in a loop of one's own with
``history.rounds[-1]``; more values are given by name: ``log(step, accuracy=0.9)``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from fedcrab.errors import ConfigError
from fedcrab.extras import need_extra
from fedcrab.files import file_errors, make_directory
from fedcrab.history.records import RoundRecord
from fedcrab.recover.step import Step
from fedcrab.train import TrainedRound

Write = Callable[[Mapping[str, float], int], None]  # (values by name, round)


class Logger:
    """Writes the figures of each step; closed at the end of a ``with`` block."""

    def __init__(self, write: Write, end: Callable[[], object]) -> None:
        self._write, self._end = write, end

    def __call__(self, step: TrainedRound | RoundRecord | Step, **values: float) -> None:
        """Write the figures of a step, and these."""
        index, figures = figures_of(step)
        told = {**figures, **{name: float(value) for name, value in values.items()}}
        self._write({name: value for name, value in told.items() if math.isfinite(value)}, index)

    def close(self) -> None:
        """Write what is left, and end."""
        self._end()

    def __enter__(self) -> Logger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def figures_of(step: TrainedRound | RoundRecord | Step) -> tuple[int, dict[str, float]]:
    """The round of a step, and its figures by name; those of a recovery begin with ``recovery/``."""
    if isinstance(step, TrainedRound):
        counts = {"clients": len(step.participants), "rejected": len(step.rejected)}
        return step.round, {f"training/{name}": float(n) for name, n in {"loss": step.loss, **counts}.items()}
    if isinstance(step, RoundRecord):
        counts = {"clients": len(step.clients), "rejected": len(step.rejected)}
        told = {"loss": step.loss, "divergence": step.divergence, **counts}
        return step.index, {f"training/{name}": float(n) for name, n in told.items()}
    if isinstance(step, Step):
        counts = {name: len(getattr(step, name)) for name in ("clients", "asked", "dropped", "capped")}
        return step.round, {f"recovery/{name}": float(n) for name, n in counts.items()}
    raise ConfigError(f"a logger is given a step of a training or a recovery, got {type(step).__name__}")


def tensorboard(directory: str | os.PathLike[str] = "runs") -> Logger:
    """Event files for ``tensorboard --logdir DIRECTORY``."""
    need_extra("tensorboard", "the TensorBoard logger")
    from tensorboard.summary import Writer

    writer = Writer(os.fspath(directory))

    def write(values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, round)
        writer.flush()

    return Logger(write, writer.close)


def mlflow(
    directory: str | os.PathLike[str] = "mlruns", *, experiment: str = "fedcrab", run: str | None = None
) -> Logger:
    """A run of MLflow in the database ``DIRECTORY/mlflow.db``.

    ``mlflow ui --backend-store-uri sqlite:///DIRECTORY/mlflow.db`` shows it.
    """
    need_extra("mlflow", "the MLflow logger")
    from mlflow import MlflowClient

    place = Path(directory).absolute()
    with file_errors(f"{place}: not created"):
        make_directory(place)
    client = MlflowClient(tracking_uri=mlflow_store(place))
    found = client.get_experiment_by_name(experiment)
    number = found.experiment_id if found else client.create_experiment(experiment, place.as_uri())
    begun = client.create_run(number, run_name=run).info.run_id

    def write(values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            client.log_metric(begun, name, value, step=round)

    return Logger(write, lambda: client.set_terminated(begun))


def mlflow_store(directory: str | os.PathLike[str]) -> str:
    """The address of the runs in a directory, as MLflow has it."""
    return f"sqlite:///{Path(directory).absolute() / 'mlflow.db'}"


def wandb(
    directory: str | os.PathLike[str] = ".", *, project: str = "fedcrab", run: str | None = None
) -> Logger:
    """An offline run of Weights & Biases under ``DIRECTORY/wandb``; ``wandb sync`` uploads it."""
    need_extra("wandb", "the Weights & Biases logger")
    import wandb as package

    begun = package.init(project=project, name=run, dir=os.fspath(directory), mode="offline")

    def write(values: Mapping[str, float], round: int) -> None:
        begun.log({**values, "round": round})

    return Logger(write, begun.finish)
