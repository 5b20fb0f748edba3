"""A loop of one's own: modules and state dicts recorded, recovered, judged and reported."""

import inspect
import math
from pathlib import Path

import numpy as np
import pytest

import fedcrab
from fedcrab import Compact, ConfigError, Everything, History, RecordError, Round, Updates
from fedcrab.aggregate import median
from fedcrab.recover.cost import planned_asks
from fedcrab.report.page import page_data
from fedcrab.rollback.decision import PRESETS
from report.in_node import NODE, plans_in_node

torch = pytest.importorskip("torch")
nn = torch.nn
CLIENTS = [str(c) for c in range(5)]
RNG = np.random.default_rng(0)
X = torch.tensor(RNG.normal(size=(120, 6)), dtype=torch.float32)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def network() -> "nn.Module":
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


MODULE = network()


def train(state: dict, client: str, round: int) -> tuple[dict, int]:
    """A few steps of descent; client 1 has learnt to answer 0."""
    own = slice(20 * int(client), 20 * int(client) + 20)
    labels = torch.zeros(20, dtype=torch.long) if client == "1" else Y[own]
    local = network()
    local.load_state_dict(state)
    for _ in range(3):
        loss = nn.functional.cross_entropy(local(X[own]), labels)
        with torch.no_grad():
            slopes = torch.autograd.grad(loss, local.parameters())
            for p, slope in zip(local.parameters(), slopes, strict=True):
                p -= 0.2 * slope
    return local.state_dict(), 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def history(place: Path) -> History:
    probe = fedcrab.probe(MODULE, X[100:], Y[100:])
    module = network()
    with History.create(
        place / "h", module, initial_loss=probe.loss(module), selection=Everything()
    ) as history:
        for t in range(4):
            answers = {c: train(module.state_dict(), c, t) for c in CLIENTS}
            module.load_state_dict(history.record(answers, probe=probe))
            assert history.rounds[-1].loss == pytest.approx(probe.loss(module))
    return history


def test_flatten_and_unflatten_are_inverse() -> None:
    state = MODULE.state_dict()
    vector = fedcrab.flatten(MODULE)
    assert np.array_equal(vector, fedcrab.flatten(state))
    back = fedcrab.unflatten(vector, MODULE)
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    again = fedcrab.unflatten(vector, arrays)
    assert all(np.array_equal(again[n], arrays[n]) and again[n].dtype == arrays[n].dtype for n in arrays)
    half = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in state.items()}
    assert fedcrab.unflatten(fedcrab.flatten(half), half)["0.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("wrong", [3, {}, {"a": np.array(["x"])}, np.zeros((2, 2), np.float32)])
def test_what_is_no_model_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError):
        fedcrab.flatten(wrong)


def test_a_module_says_what_is_trained(history: History) -> None:
    fields = {f.name: f for f in history.charter.layout.fields}
    assert list(fields) == list(MODULE.state_dict())
    assert {n for n, f in fields.items() if not f.trained} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    assert fields["1.num_batches_tracked"].integer
    numpy = fedcrab.unflatten(history.final_model(), history)
    assert numpy["1.num_batches_tracked"] == 12


def test_a_state_dict_is_recorded_as_its_module_is(history: History, tmp_path: Path) -> None:
    with History.create(tmp_path / "h", network().state_dict()) as other:
        assert other.charter.layout == history.charter.layout
        assert math.isnan(other.charter.initial_loss)
        start = fedcrab.flatten(network())
        after = other.record({c: train(network().state_dict(), c, 0) for c in CLIENTS})
        moved = fedcrab.flatten(after) - start
        trained = np.concatenate([moved[part] for part in other.charter.layout.trained()])
        assert other.rounds[0].divergence == pytest.approx(float(np.linalg.norm(trained)), rel=1e-5)
        assert math.isnan(other.rounds[0].loss)
        assert other.rounds[0].ended is not None
    assert History.verify(tmp_path / "h") == []
    assert np.array_equal(History.open(tmp_path / "h").final_model(), fedcrab.flatten(after))


def test_it_is_the_round_that_one_would_have_made(tmp_path: Path) -> None:
    start = np.array([1.0, 2.0], np.float32)
    with History.create(tmp_path / "h", start, selection=Everything()) as history:
        after = history.record({"a": ([2.0, 2.0], 1), "b": (np.array([1.0, 6.0], np.float32), 3)})
        assert after["model"].tolist() == [1.25, 5.0]
        assert history.updates(0).vectors.tolist() == [[1.0, 0.0], [0.0, 4.0]]
        after = history.record({c: ([9.0, 9.0], 1) for c in "abc"}, aggregate=median())
        assert after["model"].tolist() == [9.0, 9.0]
        after = history.record({"a": ([1.0, 1.0], 1)}, model=np.array([5.0, 5.0], np.float32))
        assert after["model"].tolist() == [5.0, 5.0]


def test_what_a_client_sends_is_hostile(tmp_path: Path) -> None:
    start = np.zeros(2, np.float32)
    with History.create(tmp_path / "h", start) as history:
        answers = {"a": ([1.0, 1.0], 1), "b": ([np.nan, 1.0], 1), "c": ([1.0], 1), "d": ([1.0, 1.0], -1)}
        after = history.record(answers)
        assert after["model"].tolist() == [1.0, 1.0]
        assert {r.client for r in history.rounds[0].rejected} == {"b", "c", "d"}
        with pytest.raises(RecordError, match="model includes this answer"):
            history.record(answers, model=np.ones(2, np.float32))
        assert history.record({"b": ([np.inf, 0.0], 1)})["model"].tolist() == [1.0, 1.0]
        with pytest.raises(RecordError, match="not both"):
            history.record({"a": ([1.0, 1.0], 1)}, model=start, aggregate=median())
        made = Round(2, start + 1, Updates.of({"a": (start, 1)}), start, 1.0, 0.0)
        with pytest.raises(RecordError, match="go with answers"):
            history.record(made, model=start)
        assert history.record(made) is None


def test_recovered_judged_and_reported(history: History, place: Path) -> None:
    seen = []
    fleet = fedcrab.fleet(train, MODULE)
    recovery = fedcrab.recover(
        history, fleet, malicious={"1"}, out=place / "out", method="retrain", on_step=seen.append
    )
    assert [step.round for step in seen] == [0, 1, 2, 3]
    assert all("1" not in step.asked for step in seen)
    state, module = network().state_dict(), network()
    for t in range(4):  # the same by hand
        with History.create(place / f"by-hand-{t}", state) as alone:
            state = alone.record({c: train(state, c, t) for c in CLIENTS if c != "1"})
    module.load_state_dict(recovery.state_dict(module))
    assert np.allclose(fedcrab.flatten(state), recovery.model, atol=1e-6)
    test = fedcrab.probe(MODULE, X, Y)
    models = {"poisoned": history.final_model(), "recovered": module}
    rows = fedcrab.evaluate(models, test, trigger=lambda x: x + 1, target=2, reference="recovered")
    assert [row["model"] for row in rows] == list(models)
    assert rows[1]["ta"] == test.accuracy(module)
    assert rows[1]["ta"] > rows[0]["ta"]
    assert rows[1]["distance"] == 0 < rows[0]["distance"]
    assert 0 <= rows[0]["asr"] <= 1
    page = fedcrab.report(recovery, place / "page.html", title="Ours")
    assert "retrain" in page.read_text()
    assert fedcrab.report(place / "h", place / "other.html", malicious={"1"}).is_file()
    assert len(recovery.sha256) == 64
    again = fedcrab.recover(place / "h", fleet, malicious={"1"}, out=place / "out", method="retrain")
    assert np.array_equal(again.model, recovery.model)
    with pytest.raises(ConfigError, match="fewer local epochs"):
        fedcrab.recover(history, fleet, malicious={"1"}, out=place / "out", method="federaser", epochs=3)
    with pytest.raises(ConfigError, match="no model named 'x'"):
        fedcrab.evaluate(models, test, reference="x")


def test_the_plan_knows_that_a_short_replay_asks_in_every_round(history: History, place: Path) -> None:
    fleet, decided = fedcrab.fleet(train, MODULE), fedcrab.plan(history, {"1"})
    recovery = fedcrab.recover(history, fleet, malicious={"1"}, out=place / "short")
    took = [len(step["asked"]) for step in recovery.steps if step["asked"]]
    assert (recovery.method, took) == ("replay", planned_asks("replay", decided))
    assert len(took) == 3
    if NODE is not None:
        (page,) = plans_in_node(page_data(history, ["1"]), [{"malicious": ["1"], **PRESETS["hardened"]}])
        assert page["asks"]["replay"] == took


def test_a_fleet_can_train_for_fewer_epochs(history: History, place: Path) -> None:
    asked = []

    def shorter(state: dict, client: str, round: int, epochs: int | None = None) -> tuple[dict, int]:
        asked.append(epochs)
        return train(state, client, round)

    fleet = fedcrab.fleet(shorter, MODULE)
    fedcrab.recover(history, fleet, malicious={"1"}, out=place / "few", method="federaser", epochs=4)
    assert set(asked) == {2}


def test_the_module_of_a_probe_is_left_alone() -> None:
    module = network().train()
    before = fedcrab.flatten(module)
    probe = fedcrab.probe(module, X, Y)
    first = probe.loss(module)
    assert module.training
    assert np.array_equal(fedcrab.flatten(module), before)
    assert probe.loss(before) == probe.loss(module.state_dict()) == first
    assert probe.divergence(before, before) == pytest.approx(0, abs=1e-6)
    assert probe.predict(before, X.numpy()[:3]).sum(axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    with pytest.raises(ConfigError, match="one class for each example"):
        fedcrab.probe(module, X, Y[:5])


def test_values_are_short_in_text_and_safe_in_html(history: History, place: Path) -> None:
    found = fedcrab.detect.ledger(history)
    decided = fedcrab.plan(history, {"1"})
    recovery = fedcrab.recover(  # one client may be named without a set
        history, fedcrab.fleet(train, MODULE), malicious="1", out=place / "<b>out", method="retrain"
    )
    assert recovery.plan.malicious == ("1",)
    for value in (history, found, decided, recovery):
        assert len(repr(value)) < 200
        assert "\n" not in repr(value)
        page = value._repr_html_()
        assert page.startswith("<table>")
        assert page.count("<table>") == page.count("</table>")
        assert "<b>" not in page
    assert repr(history) == f"History({str(history.path)!r}, closed, 4 rounds, 4 kept, 5 clients)"
    assert repr(decided) == "Plan(without 1: back to round 0 of 4, 4 rounds to replay)"


def test_a_package_that_is_called_has_the_signature_of_its_function() -> None:
    assert "malicious" in inspect.signature(fedcrab.recover).parameters
    assert "out" in inspect.signature(fedcrab.report).parameters
    assert callable(fedcrab.evaluate)
    assert fedcrab.recover.replay.__name__ == "replay"
    from fedcrab.report import tables

    assert fedcrab.report.tables is tables


def test_a_resumed_loop_goes_on(tmp_path: Path) -> None:
    begun = History.create(tmp_path / "h", MODULE, selection=Compact())
    begun.record({c: train(MODULE.state_dict(), c, 0) for c in CLIENTS})
    begun.release()
    with History.resume(tmp_path / "h") as h:
        state = fedcrab.unflatten(h.final_model(), MODULE)
        h.record({c: train(state, c, 1) for c in CLIENTS})
        assert h.rounds[0].ended <= h.rounds[1].began <= h.rounds[1].ended
    assert len(History.open(tmp_path / "h").rounds) == 2
