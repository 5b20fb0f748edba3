"""Recovery aggregates by the app's own strategy: what it gives is training without the attackers."""

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedXgbBagging,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)
from loopback import by_app
from scenes import HASTY, SITES, context, everyone, grid
from siteapp import task

from fedcrab import Compact, ConfigError, Everything, History, Selective
from fedcrab.flower import Recorder, recover_if_asked
from fedcrab.flower.run_metadata import RunMetadata
from fedcrab.recover.folder import RecoveryFolder

ATTACKER, ROUNDS = "site-2", 4
HONEST = [site for site in SITES if site != ATTACKER]


@pytest.fixture(autouse=True, scope="module")
def collected_quickly():
    """Some strategies collect garbage per answer: what is there already is left out of it."""
    gc.freeze()
    yield
    gc.unfreeze()


def initial() -> ArrayRecord:
    """No counter: Flower's clipping takes floating numbers only."""
    return ArrayRecord({name: Array(task.initial()[name]) for name in ("weight", "bias")})


def client(*mods, since: int = 1) -> Callable[[str, Message], Message]:
    """Trains by what the message says: the rate, the pull of FedProx; the attacker pushes from a round on."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, here: Context) -> Message:
        site, config = here.node_config["partition-id"], message.content["config"]
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        attacks = site == 2 and config["server-round"] >= since
        given = {**arrays, "steps": np.array(0)}
        made, count = task.local(given, site, int(config["server-round"]) - 1, 1, attacks=attacks)
        scale = float(config.get("lr", 1.0)) / (1 + float(config.get("proximal-mu", 0.0)))
        back = {n: Array(np.asarray(a + np.float32(scale) * (made[n] - a))) for n, a in arrays.items()}
        said = {"num-examples": count, "train_loss": task.loss(given, *task.examples(site))}
        content = RecordDict({"arrays": ArrayRecord(back), "metrics": MetricRecord(said)})
        return Message(content, reply_to=message)

    return by_app(app)


class Decayed(FedAvg):
    """A schedule as Flower's own example has it: the configuration is edited in place."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round > 1:
            config["lr"] *= 0.7
        return super().configure_train(server_round, arrays, config, grid)


def private(kind, inner=FedAvg, **settings):
    def make(clients: int):
        return kind(everyone(inner), noise_multiplier=0.05, num_sampled_clients=clients, **settings)

    return make


def plain(kind, **settings):
    return lambda _: everyone(kind, **settings)


STRATEGIES = {
    "fedavg": (plain(FedAvg), ()),
    "decayed": (plain(Decayed), ()),
    "fedprox": (plain(FedProx, proximal_mu=0.5), ()),
    "fedadam": (plain(FedAdam, eta=0.05), ()),
    "fedyogi": (plain(FedYogi, eta=0.05), ()),
    "fedadagrad": (plain(FedAdagrad, eta=0.05), ()),
    "fedavgm": (plain(FedAvgM, server_momentum=0.8, server_learning_rate=0.7), ()),
    "fedmedian": (plain(FedMedian), ()),
    "fedtrimmedavg": (plain(FedTrimmedAvg, beta=0.2), ()),
    "krum": (plain(Krum, num_malicious_nodes=1), ()),
    "multikrum": (plain(MultiKrum, num_malicious_nodes=1, num_nodes_to_select=3), ()),
    "bulyan": (plain(Bulyan, num_malicious_nodes=1), ()),
    "qfedavg": (plain(QFedAvg, q=0.2, client_learning_rate=0.1), ()),
    "dp-server": (private(DifferentialPrivacyServerSideFixedClipping, clipping_norm=0.7), ()),
    "dp-server-median": (
        private(DifferentialPrivacyServerSideFixedClipping, inner=FedMedian, clipping_norm=0.7),
        (),
    ),
    "dp-server-adaptive": (
        private(
            DifferentialPrivacyServerSideAdaptiveClipping, initial_clipping_norm=0.5, clipped_count_stddev=0.3
        ),
        (),
    ),
    "dp-client": (
        private(DifferentialPrivacyClientSideFixedClipping, clipping_norm=0.7),
        (fixedclipping_mod,),
    ),
    "dp-client-adaptive": (
        private(
            DifferentialPrivacyClientSideAdaptiveClipping, initial_clipping_norm=0.5, clipped_count_stddev=0.3
        ),
        (adaptiveclipping_mod,),
    ),
}


def trained(strategy, sites, handler, path: Path | None = None, **settings) -> np.ndarray:
    """A training of these sites, recorded where there is a path; the noise is drawn from one seed."""
    if path is not None:
        strategy = Recorder(strategy, path, patience=HASTY, selection=Everything(), **settings)
    np.random.seed(1)  # noqa: NPY002 - what Flower draws its noise from
    config = ConfigRecord({"lr": 0.8})
    result = strategy.start(grid(handler, sites), initial(), num_rounds=ROUNDS, train_config=config)
    return flat(result.arrays)


def flat(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([np.asarray(a.numpy(), np.float64).reshape(-1) for a in arrays.values()])


def recovered(strategy, path: Path, out: Path, handler, sites=SITES, **more):
    np.random.seed(1)  # noqa: NPY002 - what Flower draws its noise from
    request = {"mode": "recover", "history": str(path), "malicious": ATTACKER, "recovered": str(out)}
    return recover_if_asked(grid(handler, sites), context(**request, **more), strategy, patience=HASTY)


@pytest.mark.parametrize("name", STRATEGIES)
def test_retraining_is_the_same_strategy_on_the_honest_clients(name: str, tmp_path: Path) -> None:
    make, mods = STRATEGIES[name]
    poisoned = trained(make(8), SITES, client(*mods), tmp_path / "h")
    alone = trained(make(7), HONEST, client(*mods))
    found = recovered(make(8), tmp_path / "h", tmp_path / "out", client(*mods), method="retrain")
    assert np.abs(flat(found.arrays) - alone).max() < 1e-5
    assert np.abs(poisoned - alone).max() > 1e-3
    summary = RecoveryFolder.open(tmp_path / "out" / "retrain").summary
    weighted = name in ("fedavg", "decayed", "fedprox")
    history = History.open(tmp_path / "h")
    notes = RunMetadata.of(history)
    assert (notes.mean, summary.get("aggregate")) == (weighted, None if weighted else notes.strategy)
    assert history.charter.aggregation == ("fedavg" if weighted else notes.strategy)


STATEFUL = ("decayed", "fedadam", "fedavgm", "dp-server-adaptive", "dp-client-adaptive")


@pytest.mark.parametrize("name", STATEFUL)
def test_recovery_goes_on_from_the_state_at_the_rollback(name: str, tmp_path: Path) -> None:
    """Honest in two rounds: what is recovered is a training in which the attacker left after these."""
    make, mods = STRATEGIES[name]
    handler = client(*mods, since=3)
    trained(make(8), SITES, handler, tmp_path / "h")

    class Leaves(type(make(8))):
        def aggregate_train(self, server_round, replies):
            kept = [r for r in replies if server_round < 3 or r.metadata.src_node_id != gone]
            for level in (self, getattr(self, "strategy", self)):
                if hasattr(level, "num_sampled_clients"):
                    level.num_sampled_clients = len(kept)
            return super().aggregate_train(server_round, kept)

    leaving = make(8)
    leaving.__class__ = Leaves
    over = grid(handler)
    gone = next(node for node, site in over.sites.items() if site == ATTACKER)
    np.random.seed(1)  # noqa: NPY002 - what Flower draws its noise from
    config = ConfigRecord({"lr": 0.8})
    alone = flat(leaving.start(over, initial(), num_rounds=ROUNDS, train_config=config).arrays)

    np.random.seed(1)  # noqa: NPY002
    for shape in _noise_of(name):  # of the rounds before the rollback
        np.random.normal(size=shape)  # noqa: NPY002
    request = {"since": 2, "method": "crab" if "client-adaptive" in name else "replay"}
    pace = {} if request["method"] == "crab" else {"settle": 9}
    place = {"history": str(tmp_path / "h"), "recovered": str(tmp_path / "out"), "malicious": ATTACKER}
    run = context(mode="recover", **place, **request, **pace)
    found = recover_if_asked(grid(handler), run, make(8), patience=HASTY)
    assert found.plan.rollback_round == 2
    if request["method"] == "replay":
        assert np.abs(flat(found.arrays) - alone).max() < 1e-5
    else:
        assert np.isfinite(flat(found.arrays)).all()


def _noise_of(name: str) -> list:
    """What a strategy draws in two rounds: per round the count's noise, then each array's."""
    if not name.startswith("dp"):
        return []
    return [(), (12, 4), (4,)] * 2


def test_a_killed_recovery_goes_on_with_the_state_of_its_last_step(tmp_path: Path) -> None:
    make, _ = STRATEGIES["fedadam"]
    trained(make(8), SITES, client(), tmp_path / "h")
    whole = recovered(make(8), tmp_path / "h", tmp_path / "whole", client(), method="retrain")
    answers = client()

    def breaks(site, message):
        if message.content["config"]["server-round"] == 3:
            raise KeyboardInterrupt
        return answers(site, message)

    with pytest.raises(KeyboardInterrupt):
        recovered(make(8), tmp_path / "h", tmp_path / "parts", breaks, method="retrain")
    parts = recovered(make(8), tmp_path / "h", tmp_path / "parts", answers, method="retrain")
    assert parts.model.tobytes() == whole.model.tobytes()


def test_a_killed_training_goes_on_with_its_state(tmp_path: Path) -> None:
    make, _ = STRATEGIES["fedadam"]
    trained(make(8), SITES, client(), tmp_path / "whole")
    for rounds in (2, ROUNDS):
        recorder = Recorder(make(8), tmp_path / "parts", patience=HASTY, keep_open=rounds < ROUNDS)
        recorder.start(grid(client()), initial(), rounds, train_config=ConfigRecord({"lr": 0.8}))
    whole, parts = (History.open(tmp_path / name).final_model() for name in ("whole", "parts"))
    assert parts.tobytes() == whole.tobytes()


@pytest.mark.parametrize("selection", [Compact(), Selective(rounds=1.0)])
@pytest.mark.parametrize("name", ["fedadam", "fedavgm", "krum", "dp-server", "qfedavg"])
def test_every_selection_recovers_by_its_default_method(name: str, selection, tmp_path: Path) -> None:
    make, _ = STRATEGIES[name]
    recorder = Recorder(make(8), tmp_path / "h", patience=HASTY, selection=selection)
    config = ConfigRecord({"lr": 0.8})
    recorder.start(grid(client()), initial(), num_rounds=ROUNDS, train_config=config)
    found = recovered(make(8), tmp_path / "h", tmp_path / "out", client())
    replays = isinstance(selection, Compact) and name != "qfedavg"
    assert found.method == ("replay" if replays else "crab-hardened")
    alone = trained(make(7), HONEST, client())
    poisoned = np.concatenate([a.reshape(-1) for a in _arrays(History.open(tmp_path / "h"))])
    assert np.linalg.norm(flat(found.arrays) - alone) < np.linalg.norm(poisoned - alone)


def _arrays(history: History) -> list[np.ndarray]:
    return list(history.charter.layout.views(history.final_model()).values())


@pytest.fixture(scope="module")
def by_adam(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("adam") / "h"
    trained(STRATEGIES["fedadam"][0](8), SITES, client(), path)
    return path


def test_the_mean_is_taken_only_when_the_operator_says_so(by_adam: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"aggregated by FedAdam; pass the app's strategy.*aggregate='mean'"
    ):
        recovered(None, by_adam, tmp_path / "out", client())
    with pytest.raises(ConfigError, match="by FedAdam, but this app's strategy is FedYogi"):
        recovered(everyone(FedYogi), by_adam, tmp_path / "out", client())
    with pytest.raises(ConfigError, match="aggregate must be 'mean'"):
        recovered(None, by_adam, tmp_path / "out", client(), aggregate="median")
    assert not (tmp_path / "out").exists()
    recovered(None, by_adam, tmp_path / "out", client(), aggregate="mean", method="retrain")
    summary = RecoveryFolder.open(tmp_path / "out" / "retrain").summary
    assert summary["aggregate"] == "mean"
    assert "as requested; the training aggregated by FedAdam" in summary["aggregation"]


def test_what_stored_updates_do_not_say_is_not_made_up(tmp_path: Path) -> None:
    make, _ = STRATEGIES["qfedavg"]
    trained(make(8), SITES, client(), tmp_path / "h")
    with pytest.raises(ConfigError, match="QFedAvg needs each client's loss"):
        recovered(make(8), tmp_path / "h", tmp_path / "out", client(), method="replay")


def test_trees_are_refused(by_adam: Path) -> None:
    from fedcrab.flower.strategy_rule import StrategyRule

    with pytest.raises(ConfigError, match="aggregates trees"):
        StrategyRule(FedXgbBagging(), History.open(by_adam), grid())


def test_a_state_that_cannot_be_kept_is_refused_where_it_would_be_needed(tmp_path: Path) -> None:
    class Secretive(FedAvg):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.kept = iter([])

        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, list(replies)[:-1])

    trained(everyone(Secretive), SITES, client(since=3), tmp_path / "h")
    request = {"method": "replay", "since": 2}
    with pytest.raises(ConfigError, match=r"Secretive.kept cannot be stored .* from round 2"):
        recovered(everyone(Secretive), tmp_path / "h", tmp_path / "out", client(), **request)
    assert recovered(everyone(Secretive), tmp_path / "h", tmp_path / "out", client(), method="retrain")


class Nesterov(FedAvg):
    """A strategy of one's own: its state by ``state_dict``, its nodes looked up by name."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self._speed, self._before = {}, None

    def state_dict(self):
        return {"speed": self._speed}

    def load_state_dict(self, state):
        self._speed = dict(state["speed"])

    def configure_train(self, server_round, arrays, config, grid):
        self._before = {name: array.numpy() for name, array in arrays.items()}
        names = {node.node_id: node.name for node in grid.get_nodes()}
        messages = list(super().configure_train(server_round, arrays, config, grid))
        assert all(names[m.metadata.dst_node_id].startswith("site-") for m in messages)
        return messages

    def aggregate_train(self, server_round, replies):
        made, metrics = super().aggregate_train(server_round, replies)
        for name, array in self._before.items():
            moved = made[name].numpy() - array
            self._speed[name] = 0.5 * self._speed.get(name, np.zeros_like(moved)) + moved
        after = {name: Array(a + 0.5 * self._speed[name]) for name, a in self._before.items()}
        return ArrayRecord(after), metrics


def test_a_strategy_of_ones_own_says_itself_what_it_keeps(tmp_path: Path) -> None:
    trained(everyone(Nesterov), SITES, client(), tmp_path / "h")
    state = History.open(tmp_path / "h").server_state(2)
    assert list(state.values) == ["0.state_dict()"]
    assert sorted(a.shape for a in state.arrays.values()) == [(4,), (12, 4)]
    alone = trained(everyone(Nesterov), HONEST, client())
    found = recovered(everyone(Nesterov), tmp_path / "h", tmp_path / "out", client(), method="retrain")
    assert np.abs(flat(found.arrays) - alone).max() < 1e-5


def test_crab_says_that_an_optimiser_makes_fewer_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, _ = STRATEGIES["fedadam"]
    recorder = Recorder(make(8), tmp_path / "h", patience=HASTY, selection=Selective(rounds=0.5))
    recorder.start(grid(client()), initial(), num_rounds=ROUNDS, train_config=ConfigRecord({"lr": 0.8}))
    said: list[str] = []
    monkeypatch.setattr("fedcrab.flower.aggregation.log", lambda _, text, *more: said.append(text % more))
    recovered(make(8), tmp_path / "h", tmp_path / "out", client())
    assert [line for line in said if "of 4 rounds, and FedAdam makes one step in each" in line]
