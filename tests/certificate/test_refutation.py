"""Declared constants that cannot be true are refused; true ones never are (test_soundness has those)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedcrab import ConfigError, History, Round, Updates, plan
from fedcrab.certificate import Assumptions, certify, verify_certificate, write_certificate
from fedcrab.certificate.certificate import build_certificate
from fedcrab.certificate.document import Inputs, digests
from fedcrab.certificate.refutation import refuse_refuted, refutations
from fedcrab.recover.folder import RecoveryArtifacts
from trials.convex import random_training
from trials.recovered import certified

RATE, GOALS = 0.25, {"a": 4.0, "b": 8.0, "m": -50.0}  # client c descends ½(w - goal)² once a round
TRUE = {
    "rate": RATE,
    "fewest_steps": 1,
    "most_steps": 1,
    "convexity": 1.0,
    "smoothness": 1.0,
    "full_batch": True,
    "gradient": 60.0,
    "initial_gap": 18.0,
    "rollback_gap": 18.0,
}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    path, model = tmp_path_factory.mktemp("refuted") / "h", np.zeros(1, np.float32)
    with History.create(path, model, initial_loss=1.0) as history:
        for t in range(6):
            updates = Updates.of({c: (RATE * (goal - model), 1) for c, goal in GOALS.items()})
            step = updates.vectors.mean(axis=0)
            history.record(Round(t, model, updates, step, 0.9**t, 0.1))
            model = model + step
    return History.open(path)


def test_what_is_true_is_not_refused(history: History) -> None:
    refuse_refuted(Assumptions(**TRUE), plan(history, {"m"}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gradient": 1.0}, "gradient is declared as 1, but client b moved by"),
        ({"gradient": 1.0, "convexity": None}, "client b"),
        ({"expansion": 0.5}, "expansion is declared as 0.5"),
        ({"expansion": 0.99, "convexity": 0.0}, "give 1;"),
        ({"expansion": 0.99, "convexity": 0.0, "fewest_steps": None, "most_steps": None}, "give 1;"),
        ({"expansion": 1.0, "convexity": -0.1}, "give 1.025;"),
        ({"smoothness": 0.05, "convexity": 0.0}, "full batches and a drift of 0.0125"),
        (
            {"initial_gap": 17.0},
            "but the honest gradient there has a length of 5.9",
        ),
        ({"rollback_gap": 0.0}, "rollback_gap is declared as 0"),
        ({"residual": 20.0}, "residual is declared as 20, but rate, most_steps and gradient"),
    ],
)
def test_what_cannot_be_true_is_refused(history: History, change: dict, said: str) -> None:
    given, decided = Assumptions(**{**TRUE, **change}), plan(history, {"m"})
    with pytest.raises(ConfigError) as refused:
        certify(decided, assumptions=given)
    assert said in str(refused.value)


@pytest.mark.parametrize("missing", ["rate", "most_steps"])
def test_a_gradient_that_nothing_could_refute_is_refused(history: History, missing: str) -> None:
    given, decided = Assumptions(**{**TRUE, missing: None}), plan(history, {"m"})
    with pytest.raises(ConfigError, match="gradient is declared as 60 without rate and most_steps"):
        certify(decided, assumptions=given)
    inputs = Inputs.of(decided, assumptions=given)  # an older certificate with it still verifies
    build_certificate(inputs, decided, RecoveryArtifacts())


def test_gradients_that_are_too_short_for_the_way_that_was_gone(history: History) -> None:
    far = float(abs(history.model(history.kept[-1])[0]))
    given = Assumptions(convexity=1.0, gradient=0.49 * far)
    assert "models" in next(refutations(given, plan(history, {"m"}), RecoveryArtifacts()))
    assert not list(
        refutations(
            Assumptions(convexity=1.0, gradient=0.51 * far), plan(history, {"m"}), RecoveryArtifacts()
        )
    )


def test_a_residual_that_a_kept_round_contradicts(history: History) -> None:
    """At M_0 the honest mean is RATE·6 = 1.5, so a model 1 away from it has 1.25 at least."""
    given = Assumptions(**{**TRUE, "residual": 1.0})
    with pytest.raises(ConfigError, match=r"declared as 1, but round 0 had an honest mean of 1\.5"):
        certify(plan(history, {"m"}), np.ones(1, np.float32), [], assumptions=given)
    certify(
        plan(history, {"m"}),
        np.ones(1, np.float32),
        [],
        assumptions=Assumptions(**{**TRUE, "residual": 1.25}),
    )


def test_somebody_who_is_not_named_refutes_what_is_declared_of_the_honest(history: History) -> None:
    with pytest.raises(ConfigError, match=r"client m .*name the client malicious"):
        refuse_refuted(Assumptions(**{**TRUE, "gradient": 10.0}), plan(history, {"a"}))


def test_verify_names_refuted_inputs(tmp_path: Path) -> None:
    """However the file came about: another program can write any digest."""
    path, table = certified(tmp_path)
    inputs = table["inputs"]
    inputs["assumptions"] |= {"gradient": 1e-6, "residual": None}
    write_certificate(path, {**table, "inputs": inputs, "inputs_sha256": digests(inputs)})
    (problem,) = verify_certificate(path)
    assert "inputs: gradient is declared as 1e-06" in problem


@pytest.mark.slow
def test_true_constants_are_never_refused(tmp_path: Path) -> None:
    for seed in range(20_000, 21_000):
        training = random_training(seed, tmp_path / str(seed))
        given = training.problem.assumptions(gradient=training.problem.steepest)
        refuse_refuted(given, plan(training.history, training.malicious, beta=0.3))
