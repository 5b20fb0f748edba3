"""What is declared of a simulated softmax regression is true of it, and its certificates hold."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcrab import ConfigError, History, plan
from fedcrab.certificate import SOUND, read_certificate, verify_certificate
from fedcrab.experiment.config import load_config
from fedcrab.experiment.known_constants import known_assumptions
from fedcrab.experiment.recovery import recover_to_end
from fedcrab.experiment.run import recover_command
from fedcrab.experiment.setup import open_for_training, prepare, run
from fedcrab.recover.folder import RecoveryFolder

COMMON = [
    "model=softmax",
    "rounds=5",
    "clients.count=6",
    "data.examples_per_client=40",
    "attack.fraction=0.34",
]
FULL = ["local.batch=64", "local.epochs=1", "local.learning_rate=0.05", "local.weight_decay=0.1"]
BATCHES = ["local.batch=8", "local.epochs=2", "local.learning_rate=0.02"]


@pytest.fixture(scope="module", params=[FULL, BATCHES], ids=["full batch", "batches"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("declared")
    setup = prepare(load_config("digits", [*COMMON, *request.param]), workers=0)
    with open_for_training(setup, place / "h", resume=False) as history:
        for _ in run(setup, history):
            pass
    return place, setup


def test_curvature_and_gradients_are_within_what_is_declared(trained) -> None:
    place, setup = trained
    decided = plan(History.open(place / "h"), setup.attackers.clients)
    given, rng = known_assumptions(setup, decided), np.random.default_rng(0)
    honest = [c for c in setup.honest.clients if c not in decided.malicious]
    module = setup.architecture.build()
    for client in honest[:2]:
        x, y = (torch.from_numpy(np.array(part)) for part in setup.honest.examples(client))
        for _ in range(5):
            point = torch.from_numpy(rng.normal(size=650).astype(np.float32))
            direction = torch.from_numpy(rng.normal(size=650).astype(np.float32))
            slope, curve = slope_and_curve(module, point, direction, x, y, setup.config.local.weight_decay)
            assert given.convexity - 1e-5 <= curve <= given.smoothness
            assert given.gradient is None or slope <= given.gradient
    assert given.local_expansion() <= 1
    assert given.full_batch == (setup.config.local.batch == 64)
    assert (given.fewest_steps, given.most_steps) == ((1, 1) if given.full_batch else (10, 10))


def slope_and_curve(module, point, direction, x, y, decay) -> tuple[float, float]:
    """‖∇f‖ and dᵀ∇²f·d/‖d‖² at a point."""

    def loss(flat: torch.Tensor) -> torch.Tensor:
        weight, bias = flat[:640].reshape(10, 64), flat[640:]
        logits = x.flatten(1) @ weight.T + bias
        return torch.nn.functional.cross_entropy(logits, y) + decay / 2 * flat @ flat

    assert sum(p.numel() for p in module.parameters()) == len(point)
    slope = torch.autograd.functional.jacobian(loss, point)
    curved = torch.autograd.functional.hvp(loss, point, direction)[1]
    return float(slope.norm()), float(direction @ curved / (direction @ direction))


def test_recover_leaves_certificates_that_hold(trained) -> None:
    place, setup = trained
    told = {"changes": ["batches=history"], "workers": 0}
    rows, _ = recover_command(place / "h", setup.attackers.clients, "all", place / "out", **told)
    apart = {row["method"]: row["distance"] for row in rows}
    for method in ("crab-hardened", "crab-paper", "retrain"):
        path = place / "out" / method / "certificate.json"
        table = read_certificate(path)
        assert verify_certificate(path) == []
        bounds = {n: t for n, t in table["terms"].items() if n.startswith("distance.") and t["flag"] == SOUND}
        assert len(bounds) >= 4
        assert all(term["value"] >= apart[method] * (1 - 1e-6) for term in bounds.values())


def test_an_anchor_costs_one_round_and_proves_more(trained) -> None:
    place, setup = trained
    bad = setup.attackers.clients
    found = {}
    for name, anchor in (("plain", False), ("anchored", True)):
        told = {"changes": ["batches=history"], "anchor": anchor, "workers": 0}
        rows, _ = recover_command(place / "h", bad, "crab-hardened", place / name, **told)
        path = place / name / "crab-hardened" / "certificate.json"
        assert verify_certificate(path) == []
        found[name] = rows[-1], read_certificate(path)
    (before, without), (after, anchored) = found["plain"], found["anchored"]
    honest = len(setup.honest.clients) - len(bad)
    assert after["client_rounds"] == before["client_rounds"] + honest
    assert after["distance"] == before["distance"]
    assert anchored["conclusion"]["value"] <= without["conclusion"]["value"]
    assert anchored["terms"]["answers.refute"]["value"] <= 1
    assert without["subject"]["answers"] is None
    if setup.config.local.batch == 64:
        assert (
            anchored["terms"]["distance.enclosed"]["value"] < without["terms"]["distance.enclosed"]["value"]
        )
    again, _ = recover_command(
        place / "h", bad, "crab-hardened", place / "anchored", **told
    )  # all of it is there: nobody is asked
    assert (again[-1]["client_rounds"], again[-1]["sample_gradients"]) == (after["client_rounds"], 0)


def test_answers_with_other_batches_prove_nothing_unless_batches_are_full(trained) -> None:
    """Clients draw others than in the history: only where there is nothing to draw is it the same map."""
    place, setup = trained
    recover_command(
        place / "h", setup.attackers.clients, "crab-hardened", place / "fresh", anchor=True, workers=0
    )
    path = place / "fresh" / "crab-hardened" / "certificate.json"
    assert verify_certificate(path) == []
    table = read_certificate(path)
    assert table["inputs"]["batches"] == "fresh"
    full = setup.config.local.batch == 64
    assert (table["terms"]["distance.coupled"]["flag"] == SOUND) is full
    assert (table["terms"]["answers.refute"]["value"] is not None) is full
    again = recover_to_end(
        "retrain", History.open(place / "h"), setup.attackers.clients, setup, batches="history"
    )
    found = RecoveryFolder.open(path.parent).model(History.open(place / "h"))
    apart = float(np.linalg.norm(found.astype(np.float64) - again.model))
    for name, term in table["terms"].items():
        if name.startswith("distance.") and term["flag"] == SOUND:
            assert term["value"] >= apart * (1 - 1e-6), name


def test_a_certified_replay_proves_more_than_a_plain_one(trained) -> None:
    place, setup = trained
    bad, history = setup.attackers.clients, History.open(place / "h")
    again = recover_to_end("retrain", history, bad, setup, batches="history").model
    proved = {}
    for name, more in (("plain-replay", []), ("proof", ["proof=0.05"])):
        changes = ["batches=history", *more]
        recover_command(place / "h", bad, "replay", place / name, changes=changes, workers=0)
        path = place / name / "replay" / "certificate.json"
        assert verify_certificate(path) == []
        table = read_certificate(path)
        model = RecoveryFolder.open(path.parent).model(history)
        apart = float(np.linalg.norm(model.astype(np.float64) - again))
        sound = {
            n: t["value"]
            for n, t in table["terms"].items()
            if n.startswith("distance.") and t["flag"] == SOUND
        }
        assert "distance.replayed" in sound
        assert all(value >= apart * (1 - 1e-6) for value in sound.values())
        proved[name] = table["conclusion"]["value"]
    assert proved["proof"] < proved["plain-replay"]
    if setup.config.local.batch != 64:
        with pytest.raises(ConfigError, match="answers with the history's batches"):
            recover_command(place / "h", bad, "replay", place / "x", changes=["proof=0.1"], workers=0)


def test_nothing_is_proved_of_a_network() -> None:
    setup = prepare(load_config("digits", [*COMMON, "model=mlp", "rounds=1"]), workers=0)
    with tempfile.TemporaryDirectory() as place:
        with open_for_training(setup, Path(place) / "h", resume=False) as history:
            list(run(setup, history))
        history = History.open(Path(place) / "h")
        with pytest.raises(ConfigError, match="softmax has one, 'mlp' does not"):
            recover_to_end("replay", history, setup.attackers.clients, setup, proof=0.1)
