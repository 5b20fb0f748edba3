"""Loggers against the real packages: what each writes is read back by the package itself.

Skipped where a package is not installed: `make integrations` installs them.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedcrab
from fedcrab import ConfigError, History, Round, Updates, loggers
from fedcrab.aggregate import fedavg
from fedcrab.extras import has_extra
from fedcrab.recover import Step
from fedcrab.train import TrainedRound, train

CLIENTS = ("a", "b", "c")


class Drift:
    """Every client moves the model by its own step."""

    def train(self, model: np.ndarray, clients: tuple[str, ...], **_: object) -> Updates:
        return Updates.of({c: (np.full(3, 1.0 + CLIENTS.index(c), np.float32), 1) for c in clients})


class Probe:
    def loss(self, model: np.ndarray) -> float:
        return 1 / (1 + float(model[0]))

    def divergence(self, before: np.ndarray, after: np.ndarray) -> float:
        return 0.1


def trained_and_recovered(place: Path, log: loggers.Logger) -> tuple[list[TrainedRound], list[Step]]:
    """Three rounds of training and a retraining, both logged."""
    steps: list[Step] = []
    with History.create(place / "h", np.zeros(3, np.float32), initial_loss=1.0) as history:
        how = {"probe": Probe(), "aggregate": fedavg(), "rounds": 3, "seed": 0, "on_step": log}
        rounds = list(train(Drift(), CLIENTS, history, **how))

    def both(step: Step) -> None:
        steps.append(step)
        log(step, accuracy=0.5 + step.round / 10)

    how = {"malicious": {"b"}, "out": place / "out", "method": "retrain", "on_step": both}
    fedcrab.recover(history, Drift(), **how)
    log.close()
    return rounds, steps


def expected(rounds: list[TrainedRound], steps: list[Step]) -> dict[str, list[tuple[int, float]]]:
    return {
        "training/loss": [(r.round, r.loss) for r in rounds],
        "training/clients": [(r.round, 3.0) for r in rounds],
        "recovery/asked": [(s.round, 2.0) for s in steps],
        "accuracy": [(s.round, 0.5 + s.round / 10) for s in steps],
    }


def test_figures_by_hand(tmp_path: Path) -> None:
    step = TrainedRound(4, np.zeros(1, np.float32), float("nan"), ("a", "b"), ())
    assert loggers.figures_of(step)[0] == 4
    written: list[tuple[dict, int]] = []
    log = loggers.Logger(lambda values, t: written.append((dict(values), t)), lambda: None)
    log(step, accuracy=0.5)
    assert written == [({"training/clients": 2.0, "training/rejected": 0.0, "accuracy": 0.5}, 4)]
    with History.create(tmp_path / "h", np.zeros(1, np.float32)) as history:
        start = np.zeros(1, np.float32)
        history.record(Round(0, start, Updates.of({"a": (start, 1)}), start, 2.0, 0.5))
        figures = {"loss": 2.0, "divergence": 0.5, "clients": 1.0, "rejected": 0.0}
        assert loggers.figures_of(history.rounds[-1]) == (
            0,
            {f"training/{name}": value for name, value in figures.items()},
        )
    with pytest.raises(ConfigError, match="got int"):
        log(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named(name: str, tmp_path: Path) -> None:
    if has_extra(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(ConfigError, match=rf"pip install 'fedcrab\[{name}\]'"):
        getattr(loggers, name)(tmp_path)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="make integrations installs it")
    told = expected(*trained_and_recovered(tmp_path, loggers.tensorboard(tmp_path / "runs")))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    for name, values in told.items():
        found = [(e.step, float(make_ndarray(e.tensor_proto))) for e in events.Tensors(name)]
        assert [t for t, _ in found] == [t for t, _ in values]
        assert [v for _, v in found] == pytest.approx([v for _, v in values])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="make integrations installs it")
    told = expected(*trained_and_recovered(tmp_path, loggers.mlflow(tmp_path / "mlruns", run="mine")))
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=loggers.mlflow_store(tmp_path / "mlruns"))
    experiment = client.get_experiment_by_name("fedcrab")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    for name, values in told.items():
        found = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name))
        assert [v for _, v in found] == pytest.approx([v for _, v in values])
        assert [t for t, _ in found] == [t for t, _ in values]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="make integrations installs it")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    told = expected(*trained_and_recovered(tmp_path, loggers.wandb(tmp_path, run="mine")))
    wandb.teardown()  # its own process writes, and has written all when it ends
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = list(history_of(written))
    for name, values in told.items():
        found = [(int(row["round"]), row[name]) for row in rows if name in row]
        assert [t for t, _ in found] == [t for t, _ in values]
        assert [v for _, v in found] == pytest.approx([v for _, v in values])


BLOCK, HEADER, WHOLE, LAST = 32768, 7, 1, 4  # of LevelDB's log format, in which an offline run is written


def records_of(data: bytes) -> Iterator[bytes]:
    """The records of a run's log: blocks, in which each piece has a checksum, a length and a kind."""
    at, begun = HEADER, b""  # the file's own header is as long
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        begun += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (WHOLE, LAST):
            yield begun
            begun = b""


def history_of(path: Path) -> Iterator[dict[str, float]]:
    """The rows that an offline run of wandb has written, by wandb's own messages."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data.startswith(b":W&B")
    for content in records_of(data):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        if record.history.item:
            items = record.history.item
            yield {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
