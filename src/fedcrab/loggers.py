"""Log the steps of a training or a recovery to TensorBoard, MLflow or Weights & Biases.

Each logger writes local files and needs no server. Each needs the extra of its name. Pass a logger as
``on_step`` to :func:`fedcrab.train.train` or ``fedcrab.recover``. In your own loop, call it with
``history.rounds[-1]``. Add more values by name: ``log(step, accuracy=0.9)``.
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
    """Writes the figures of each step. A ``with`` block closes it."""

    def __init__(self, write: Write, end: Callable[[], object]) -> None:
        self._write, self._end = write, end

    def __call__(self, step: TrainedRound | RoundRecord | Step, **values: float) -> None:
        """Write the figures of a step, and these additional values."""
        index, figures = figures_of(step)
        all_values = {**figures, **{name: float(value) for name, value in values.items()}}
        self._write({name: value for name, value in all_values.items() if math.isfinite(value)}, index)

    def close(self) -> None:
        """Write what is buffered, and close."""
        self._end()

    def __enter__(self) -> Logger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def figures_of(step: TrainedRound | RoundRecord | Step) -> tuple[int, dict[str, float]]:
    """Return the round of a step and its figures by name; those of a recovery start with ``recovery/``."""
    if isinstance(step, TrainedRound):
        counts = {"clients": len(step.participants), "rejected": len(step.rejected)}
        return step.round, {f"training/{name}": float(n) for name, n in {"loss": step.loss, **counts}.items()}
    if isinstance(step, RoundRecord):
        counts = {"clients": len(step.clients), "rejected": len(step.rejected)}
        figures = {"loss": step.loss, "divergence": step.divergence, **counts}
        return step.index, {f"training/{name}": float(n) for name, n in figures.items()}
    if isinstance(step, Step):
        counts = {name: len(getattr(step, name)) for name in ("clients", "asked", "dropped", "capped")}
        return step.round, {f"recovery/{name}": float(n) for name, n in counts.items()}
    raise ConfigError(f"a logger takes a step of a training or a recovery, got {type(step).__name__}")


def tensorboard(directory: str | os.PathLike[str] = "runs") -> Logger:
    """Return a logger that writes event files for ``tensorboard --logdir DIRECTORY``."""
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
    """Return a logger that writes a run to the MLflow database ``DIRECTORY/mlflow.db``.

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
    run_id = client.create_run(number, run_name=run).info.run_id

    def write(values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            client.log_metric(run_id, name, value, step=round)

    return Logger(write, lambda: client.set_terminated(run_id))


def mlflow_store(directory: str | os.PathLike[str]) -> str:
    """Return MLflow's address for the runs in a directory."""
    return f"sqlite:///{Path(directory).absolute() / 'mlflow.db'}"


def wandb(
    directory: str | os.PathLike[str] = ".", *, project: str = "fedcrab", run: str | None = None
) -> Logger:
    """Return a logger that writes an offline run to ``DIRECTORY/wandb``; ``wandb sync`` uploads it."""
    need_extra("wandb", "the Weights & Biases logger")
    import wandb as package

    wandb_run = package.init(project=project, name=run, dir=os.fspath(directory), mode="offline")

    def write(values: Mapping[str, float], round: int) -> None:
        wandb_run.log({**values, "round": round})

    return Logger(write, wandb_run.finish)
