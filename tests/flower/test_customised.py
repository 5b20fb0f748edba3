"""What real apps do beside Flower's templates: own loops, schedules, parts of the model, other names."""

import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.serverapp.strategy import FedAvg, Result
from loopback import by_app
from scenes import HASTY, SITES, Plain, context, everyone, grid, initial, recorded
from siteapp import client, server

from fedcrab import ConfigError, Everything, History
from fedcrab.flower import FlowerFleet, Recorder, recover_if_asked
from fedcrab.flower.run_metadata import RunMetadata
from fedcrab.flower.sent_config import RecordedConfig
from fedcrab.flower.waiting import last_line

honest = by_app(client.app)


class Own(FedAvg):
    """As Flower's advanced example: a loop of its own, a schedule, results, some of the nodes."""

    def prepare(self, place: Path) -> None:
        self.place, self.done = place, []

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 3:
            config["lr"] = config["lr"] * 0.5
        messages = super().configure_train(server_round, arrays, config, grid)
        names = {node.node_id: node.name for node in grid.get_nodes()}
        return [m for m in messages if (int(names[m.metadata.dst_node_id][-1]) + server_round) % 4]

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None, extra=0, **more):
        result, arrays = Result(), initial_arrays
        for current in range(1, num_rounds + 1):
            messages = self.configure_train(current, arrays, train_config, grid)
            made, metrics = self.aggregate_train(current, grid.send_and_receive(messages, timeout=timeout))
            arrays = result.arrays = made
            self.done.append([current, sorted(metrics), extra])
            (self.place / "results.json").write_text(json.dumps(self.done))
        return result


def test_a_strategy_keeps_its_own_start_and_its_attributes(tmp_path: Path) -> None:
    seen: dict[int, set] = {}

    def followed(site: str, message: Message) -> Message:
        config = message.content["config"]
        seen.setdefault(config["server-round"], set()).add((site, config["lr"]))
        return honest(site, message)

    recorder = Recorder(everyone(Own), tmp_path / "h", patience=HASTY, selection=Everything())
    recorder.prepare(tmp_path)
    recorder.fraction_train = 1.0  # set where it belongs
    assert recorder.strategy.place == tmp_path
    assert recorder.strategy.fraction_train == 1.0
    rate = ConfigRecord({"lr": 0.4})
    recorder.start(grid(followed), initial(), num_rounds=4, train_config=rate, extra=7)
    written = json.loads((tmp_path / "results.json").read_text())
    assert [row[0] for row in written] == [1, 2, 3, 4]
    assert {row[2] for row in written} == {7}
    assert not {"configure_train", "aggregate_train"} & set(vars(recorder.strategy))
    history = History.open(tmp_path / "h")
    assert history.closed
    trained, seen = seen, {}
    recover(tmp_path, followed, everyone(Own), method="retrain")
    for t, entry in enumerate(history.rounds, 1):
        assert {site for site, _ in trained[t]} == set(entry.clients)
        assert seen.get(t, set()) == {(s, lr) for s, lr in trained[t] if s != "site-2"}
    alone = Recorder(everyone(Own), tmp_path / "alone", patience=HASTY)
    alone.prepare(tmp_path)
    rate = ConfigRecord({"lr": 0.4})
    alone.start(grid(sites=[s for s in SITES if s != "site-2"]), initial(), 4, train_config=rate)
    found = RecordedConfig(history, RunMetadata.of(history))
    assert [found.config(t)["lr"] for t in range(4)] == [0.4, 0.4, 0.2, 0.2]
    expected = History.open(tmp_path / "alone").final_model()
    np.testing.assert_allclose(History.open(tmp_path / "h").model(0), Plain.model.flatten(initial()))
    np.testing.assert_allclose(recovered_model(tmp_path, "retrain"), expected, atol=1e-5)


def recover(place: Path, handler, strategy=None, history: str = "h", **more):
    request = {"history": str(place / history), "malicious": "site-2", "recovered": str(place / "out")}
    return recover_if_asked(
        grid(handler), context(mode="recover", **request, **more), strategy, patience=HASTY
    )


def recovered_model(place: Path, method: str) -> np.ndarray:
    from fedcrab.recover.folder import RecoveryFolder

    folder = RecoveryFolder.open(place / "out" / method)
    return folder.model(folder.open_history())


def subset(names: set[str]):
    """Clients that keep some arrays to themselves, as FedBN does."""

    def answer(site: str, message: Message) -> Message:
        arrays = message.content["arrays"]
        sent.append((message.content["config"]["server-round"], frozenset(arrays)))
        full = ArrayRecord({**{n: Array(a) for n, a in whole.items()}, **dict(arrays)})
        asked = Message(
            RecordDict({"arrays": full, "config": message.content["config"]}),
            1,
            message.metadata.message_type,
        )
        made = honest(site, asked).content
        kept = ArrayRecord({n: a for n, a in made["arrays"].items() if n in names})
        return Message(RecordDict({"arrays": kept, "metrics": made["metrics"]}), reply_to=message)

    whole = {name: array.numpy() for name, array in initial().items()}
    sent: list = []
    answer.sent = sent
    return answer


def test_replies_with_some_of_the_arrays_are_recorded_and_recovered(tmp_path: Path) -> None:
    answer = subset({"weight"})
    history = recorded(tmp_path / "h", grid(answer), strategy=everyone(), selection=Everything())
    alone = everyone().start(grid(subset({"weight"}), [s for s in SITES if s != "site-2"]), initial(), 4)
    trained = set(answer.sent)
    assert trained == {(1, frozenset(initial())), *((t, frozenset({"weight"})) for t in (2, 3, 4))}
    assert [len(r.clients) for r in history.rounds] == [8] * 4
    assert History.verify(tmp_path / "h") == []
    bias = Plain.model.layout.slices()["bias"]
    assert not history.final_model()[bias].any()
    again = subset({"weight"})
    found = recover(tmp_path, again, method="retrain")
    assert set(again.sent) == trained
    weight = Plain.model.layout.slices()["weight"]
    np.testing.assert_allclose(found.model[weight], alone.arrays["weight"].numpy().reshape(-1), atol=1e-5)
    resumed = subset({"weight"})
    recorded(tmp_path / "parts", grid(resumed), rounds=2, keep_open=True, selection=Everything())
    parts = recorded(tmp_path / "parts", grid(resumed), selection=Everything())
    assert set(resumed.sent) == trained
    assert parts.final_model().tobytes() == history.final_model().tobytes()


def test_a_history_whose_training_has_not_ended_is_recovered_only_when_told_to(tmp_path: Path) -> None:
    recorded(tmp_path / "h", grid(), rounds=2, keep_open=True)
    with pytest.raises(
        ConfigError, match=r"has not ended.*unfinished=true to recover from its first 2 rounds"
    ):
        recover(tmp_path, honest)
    assert not (tmp_path / "out").exists()
    assert recover(tmp_path, honest, unfinished=True, method="retrain").method == "retrain"


def renamed(site: str, message: Message) -> Message:
    content = honest(site, message).content
    said = {"num-examples": content["metrics"]["num-examples"], "my_loss": content["metrics"]["train_loss"]}
    return Message(RecordDict({"arrays": content["arrays"], "metrics": MetricRecord(said)}), reply_to=message)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for module in ("recorder", "sent_config", "recovery"):
        monkeypatch.setattr(f"fedcrab.flower.{module}.log", lambda _, text, *more: lines.append(text % more))
    return lines


def test_losses_by_other_names_and_one_warning_where_they_stay_unknown(tmp_path: Path, said) -> None:
    unknown = recorded(tmp_path / "unknown", grid(renamed), rounds=3, evaluate_fn=None)
    assert all(np.isnan(r.loss) for r in unknown.rounds)
    assert len([line for line in said if "the loss is unknown" in line]) == 1
    said.clear()
    named = recorded(tmp_path / "named", grid(renamed), rounds=2, evaluate_fn=None, loss_key="my_loss")
    usual = recorded(tmp_path / "usual", grid(), rounds=2, evaluate_fn=None)
    assert [r.loss for r in named.rounds] == [r.loss for r in usual.rounds]
    assert not [line for line in said if "unknown" in line]


TRACE = (
    "<class 'ray.exceptions.RayTaskError'>:<'\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=1)\n"
    "  File \"client.py\", line 7, in train\n\x1b[31mKeyError: 'lr'\x1b[0m\n'>"
)


def test_the_reason_is_the_clients_own_last_line_and_in_the_log_too(tmp_path: Path, said) -> None:
    def fails(site: str, message: Message) -> Message:
        error = Message(Error(2, TRACE), reply_to=message)
        return error if site == "site-5" else honest(site, message)

    history = recorded(tmp_path / "h", grid(fails), rounds=1)
    assert [r.reason for r in history.rounds[0].rejected] == ["failed: error 2: KeyError: 'lr'"]
    assert [line for line in said if "round 1 without site-5: failed: error 2: KeyError: 'lr'" in line]
    assert (
        last_line("<class 'a.b.ZeroDivisionError'>:<'division by zero'>")
        == "ZeroDivisionError: division by zero"
    )
    assert last_line("no disk") == "no disk"
    assert last_line("\x1b]0;title\x07\x00 \n") == ""


def test_an_evaluation_runs_once_per_model(tmp_path: Path) -> None:
    counted: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        counted.append(server_round)
        return server.evaluated(server_round, arrays)

    for given in ({"evaluate_fn": evaluate}, {}):
        counted.clear()
        recorder = Recorder(everyone(), tmp_path / f"h{len(given)}", patience=HASTY, **given)
        result = recorder.start(grid(), initial(), num_rounds=3, evaluate_fn=evaluate)
        assert counted == [0, 1, 2, 3]
        assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2, 3]


def test_what_all_clients_are_sent_is_kept_once(tmp_path: Path) -> None:
    class Scheduled(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["lr"] = 1.0 / server_round
            messages = list(super().configure_train(server_round, arrays, config, grid))
            if server_round == 3:
                first, *rest = messages
                own = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "mine": b"\x00"})})
                messages = [Message(own, first.metadata.dst_node_id, first.metadata.message_type), *rest]
            return messages

    config = ConfigRecord({"prompt": "x" * 5000, "lr": 1.0, "names": ["a"]})
    recorder = Recorder(everyone(Scheduled), tmp_path / "h", patience=HASTY)
    recorder.start(grid(), initial(), num_rounds=4, train_config=config)
    history = History.open(tmp_path / "h")
    notes = [entry.notes or "" for entry in history.rounds]
    assert notes[0] == ""
    assert [len(text) < 200 for text in notes] == [True] * 4
    found = RecordedConfig(history, RunMetadata.of(history))
    assert [found.config(t)["lr"] for t in range(4)] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert [found.config(t)["server-round"] for t in range(6)] == [1, 2, 3, 4, 5, 6]
    mine = {c: found.records(2, c)["config"].get("mine") for c in history.clients}
    assert sorted(map(str, mine.values())) == ["None"] * 7 + [str(b"\x00")]
    same = recorded(tmp_path / "same", grid())
    assert {entry.notes for entry in same.rounds} == {None}


def test_settings_of_single_clients_that_no_ledger_takes_are_left_out_with_a_warning(
    tmp_path: Path, said
) -> None:
    class Personal(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for n, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
                own = ConfigRecord({"server-round": server_round, "text": str(n) * 2**18})
                content = RecordDict({"arrays": arrays, "config": own})
                yield Message(content, message.metadata.dst_node_id, message.metadata.message_type)

    history = recorded(tmp_path / "h", grid(), rounds=1, strategy=everyone(Personal))
    assert len([line for line in said if "settings of single clients" in line]) == 1
    assert (
        len(FlowerFleet(grid(), history, patience=HASTY).train(history.model(0), SITES, round=0).clients) == 8
    )
