"""A strategy with a recorder around it trains as it did, and the history says what happened."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import scenes
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    Strategy,
)
from scenes import HASTY, SITES, Plain, context, everyone, grid, initial, plainly_recorded, recorded

from fedcrab import ConfigError, Everything, History, Selective, plan
from fedcrab.flower import Recorder, recover_if_asked
from fedcrab.flower.run_metadata import RunMetadata
from fedcrab.history.verify import verify
from trials.layouts import LAYOUTS

PRIVATE = {"noise_multiplier": 0.0, "num_sampled_clients": 8}  # no noise: two trainings can be compared
STRATEGIES = {
    "fedavg": lambda: everyone(),
    "fedadam": lambda: everyone(FedAdam, eta=0.05),
    "fedyogi": lambda: everyone(FedYogi, eta=0.05),
    "fedadagrad": lambda: everyone(FedAdagrad, eta=0.05),
    "fedavgm": lambda: everyone(FedAvgM, server_momentum=0.5),
    "fedmedian": lambda: everyone(FedMedian),
    "fedtrimmedavg": lambda: everyone(FedTrimmedAvg, beta=0.2),
    "krum": lambda: everyone(Krum, num_malicious_nodes=1),
    "multikrum": lambda: everyone(MultiKrum, num_malicious_nodes=1, num_nodes_to_select=3),
    "private": lambda: DifferentialPrivacyServerSideFixedClipping(everyone(), clipping_norm=2.0, **PRIVATE),
    "private-adaptive": lambda: DifferentialPrivacyServerSideAdaptiveClipping(
        everyone(), initial_clipping_norm=2.0, clipped_count_stddev=0.0, **PRIVATE
    ),
    "private-clients": lambda: DifferentialPrivacyClientSideFixedClipping(
        everyone(), clipping_norm=2.0, **PRIVATE
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_training_is_as_it_was_and_the_history_says_what_happened(name: str, tmp_path: Path) -> None:
    make = STRATEGIES[name]
    alone = flat(make().start(grid(), initial(), num_rounds=3))
    with_recorder = Recorder(make(), tmp_path / "h", selection=Everything(), patience=HASTY)
    assert flat(with_recorder.start(grid(), initial(), num_rounds=3)) == pytest.approx(alone, abs=2e-5)
    history = History.open(tmp_path / "h")
    assert History.verify(tmp_path / "h") == []
    assert history.final_model()[:-1] == pytest.approx(alone, abs=2e-5)
    times = [when for entry in history.rounds for when in (entry.began, entry.ended)]
    assert times == sorted(times)
    for entry in history.rounds:
        updates = history.updates(entry.index)
        assert updates.clients == tuple(scenes.SITES)
        assert not entry.rejected
        again = Plain().train(history.model(entry.index), scenes.SITES, round=entry.index)
        np.testing.assert_allclose(updates.vectors, again.vectors, atol=1e-6)
        assert updates.weights.tolist() == again.weights.tolist()


def flat(result) -> np.ndarray:
    """The trained numbers; the counter at the end stays whole, which server optimisers would not let it."""
    return Plain.model.flatten(result.arrays)[:-1]


def test_it_is_the_training_that_fedcrab_itself_would_have_recorded(tmp_path: Path) -> None:
    ours, here = plainly_recorded(tmp_path / "plain"), recorded(tmp_path / "flower", grid())
    assert here.kept == ours.kept
    assert here.charter.initial_loss == pytest.approx(ours.charter.initial_loss)
    for one, other in zip(here.rounds, ours.rounds, strict=True):
        assert (one.loss, one.divergence) == pytest.approx((other.loss, other.divergence), rel=1e-4)
        assert one.selected.tolist() == other.selected.tolist()
        np.testing.assert_allclose(one.norms, other.norms, rtol=1e-5)
    decisions = [plan(history, ["site-2"]) for history in (ours, here)]
    assert decisions[0].replay == decisions[1].replay
    assert decisions[0].sensitivity == pytest.approx(decisions[1].sensitivity, rel=1e-4)


def test_a_training_begun_again_is_the_training_uninterrupted(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole", grid(), rounds=4)
    recorded(tmp_path / "parts", grid(), rounds=1, keep_open=True)
    recorded(tmp_path / "parts", grid(), rounds=3, keep_open=True)
    parts = recorded(tmp_path / "parts", grid(), rounds=4)
    assert parts.closed
    assert [r.digests for r in parts.rounds] == [r.digests for r in whole.rounds]
    assert parts.final_model().tobytes() == whole.final_model().tobytes()


def test_a_training_that_broke_off_goes_on_after_its_last_recorded_round(tmp_path: Path) -> None:
    class Breaks(FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 3:
                raise KeyboardInterrupt
            return super().aggregate_train(server_round, replies)

    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path / "h", grid(), strategy=everyone(Breaks))
    assert len(History.open(tmp_path / "h").rounds) == 2
    done = recorded(tmp_path / "h", grid())
    whole = recorded(tmp_path / "whole", grid())
    assert [r.digests for r in done.rounds] == [r.digests for r in whole.rounds]


def test_a_finished_training_started_again_does_nothing(tmp_path: Path) -> None:
    before = recorded(tmp_path / "h", grid(), rounds=2)

    def nobody(*_: object) -> None:
        raise AssertionError("asked again")

    result = Recorder(everyone(), tmp_path / "h").start(grid(nobody), initial(), num_rounds=2)
    assert flat(result).tobytes() == before.final_model()[:-1].tobytes()
    with pytest.raises(ConfigError, match="ended after 2 rounds"):
        recorded(tmp_path / "h", grid(), rounds=3)


def test_results_of_a_resumed_training_have_the_numbers_of_their_rounds(tmp_path: Path) -> None:
    recorded(tmp_path / "h", grid(), rounds=2, keep_open=True)
    asked = []

    def evaluate(server_round, arrays):
        asked.append(server_round)
        return scenes.server.evaluated(server_round, arrays)

    result = Recorder(everyone(), tmp_path / "h").start(grid(), initial(), num_rounds=4, evaluate_fn=evaluate)
    assert list(result.train_metrics_clientapp) == [3, 4]
    assert list(result.evaluate_metrics_serverapp) == [2, 3, 4]
    assert set(asked) <= {2, 3, 4}


def test_without_data_of_its_own_the_server_takes_the_median_of_reported_losses(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", grid(), rounds=2, evaluate_fn=None, selection=Selective(rounds=1.0))
    assert np.isnan(history.charter.initial_loss)
    for entry in history.rounds:
        model = {n: a.numpy() for n, a in Plain.model.arrays(history.model(entry.index)).items()}
        losses = [
            (scenes.task.loss(model, *scenes.task.examples(i)), len(scenes.task.examples(i)[1]))
            for i in range(8)
        ]
        assert entry.loss == pytest.approx(naive_median(losses), rel=1e-5)
    after = history.model(1)
    moved = (after - history.model(0))[:-1]  # the counter at the end is not trained
    assert history.rounds[0].divergence == pytest.approx(float(np.linalg.norm(moved)), rel=1e-5)


def naive_median(weighted: list[tuple[float, int]]) -> float:
    values = sorted(value for value, count in weighted for _ in range(count))
    return values[(len(values) - 1) // 2]


def one_more(site: str, message: Message) -> Message:
    """An answer for any model: every number one greater."""
    arrays = {
        name: Array(np.asarray(a.numpy() + 1, a.dtype)) for name, a in message.content["arrays"].items()
    }
    made = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 5, "train_loss": 1.0})}
    return Message(RecordDict(made), reply_to=message)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_model_of_ordinary_depth_and_a_long_configuration_are_recorded_and_recovered(
    name: str, tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    kinds = {False: np.float32, True: np.int64}
    arrays = ArrayRecord({f.name: Array(np.zeros(f.shape, kinds[f.integer])) for f in layout.fields})
    config = ConfigRecord({"prompt": "line\n" * 2000, "lr": 0.1})
    recorder = Recorder(everyone(), tmp_path / "h", patience=HASTY)
    recorder.start(grid(one_more, SITES[:2]), arrays, num_rounds=2, train_config=config)
    history = History.open(tmp_path / "h")
    assert History.verify(tmp_path / "h") == []
    assert history.charter.layout == layout
    assert RunMetadata.of(history).config == {"prompt": "line\n" * 2000, "lr": 0.1}
    assert set(history.final_model().tolist()) == {2.0}
    assert set(RunMetadata.of(history).model(history).arrays(history.final_model())) == set(arrays)
    request = {"history": str(tmp_path / "h"), "malicious": SITES[0], "recovered": str(tmp_path / "out")}
    run = context(mode="recover", method="retrain", **request)
    found = recover_if_asked(grid(one_more, SITES[:2]), run, everyone(), patience=HASTY)
    assert set(found.model.tolist()) == {2.0}
    assert set(found.arrays) == set(arrays)


def test_a_configuration_that_no_history_can_hold_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    config = ConfigRecord({"prompt": "x" * 2**21})
    with pytest.raises(ConfigError, match="shorten the notes"):
        Recorder(everyone(), tmp_path / "h").start(grid(), initial(), num_rounds=1, train_config=config)
    assert list(tmp_path.iterdir()) == []


def test_another_model_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "h", grid(), rounds=1, keep_open=True)
    arrays = initial()
    arrays.pop("bias")
    with pytest.raises(ConfigError, match="another model"):
        Recorder(everyone(), tmp_path / "h").start(grid(), arrays, num_rounds=2)


def test_every_strategy_here_is_a_current_one() -> None:
    assert all(isinstance(make(), Strategy) for make in STRATEGIES.values())


def test_the_head_is_logged_every_so_many_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("fedcrab.flower.recorder.log", lambda _level, text, *more: said.append(text % more))
    recorder = Recorder(everyone(), tmp_path / "h", patience=HASTY, head_every=2)
    recorder.start(grid(), initial(), num_rounds=5)
    noted = [line.rsplit(": ", 1)[1] for line in said if "head after round" in line]
    assert [verify(tmp_path / "h", head=head).anchored for head in noted] == [2, 4]
    with pytest.raises(ConfigError, match="head_every"):
        Recorder(everyone(), tmp_path / "h", head_every=-1)


class Watching(FedAvg):
    """Counts the replies of the round before that are still there when the next one is asked for."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.replies, self.held = [], []

    def configure_train(self, server_round, arrays, config, grid):
        self.held.append(sum(reply() is not None for reply in self.replies))
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        given = list(replies)
        self.replies = [weakref.ref(reply) for reply in given]
        return super().aggregate_train(server_round, given)


def test_the_replies_of_a_round_are_gone_when_the_next_one_begins(tmp_path: Path) -> None:
    """Flower's own loop holds them until the next ones have come in: twice the memory."""
    watching = everyone(Watching)
    recorded(tmp_path / "h", grid(), rounds=3, strategy=watching)
    assert watching.held == [0, 0, 0]
