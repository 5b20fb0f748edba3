"""The noise: calibrated by the exact condition, seeded, on the trained numbers alone."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab import ConfigError, plan
from fedcrab.certificate import SOUND, analytic_sigma, certify, classical_sigma, noised
from fedcrab.certificate.noise import leaked
from fedcrab.recover import crab
from trials.convex import random_training

epsilons, deltas = st.floats(0.001, 100), st.floats(1e-12, 0.5)


@given(epsilons, deltas, st.floats(0.1, 10))
def test_the_least_sigma(epsilon: float, delta: float, sensitivity: float) -> None:
    sigma = analytic_sigma(sensitivity, epsilon, delta)
    assert leaked(sensitivity / sigma, epsilon) <= delta * (1 + 1e-7)
    assert leaked(sensitivity / (0.999 * sigma), epsilon) >= delta * (1 - 1e-4)


@given(st.floats(0.001, 0.999), st.floats(1e-12, 0.1))
def test_the_usual_sigma_is_never_less(epsilon: float, delta: float) -> None:
    assert classical_sigma(1.0, epsilon, delta) >= analytic_sigma(1.0, epsilon, delta)


def test_the_usual_sigma_fails_where_it_is_not_proved() -> None:
    """For large ε the usual formula gives too little noise: it is not stated from ε = 1 on."""
    epsilon, delta = 30.0, 1e-2
    usual = math.sqrt(2 * (math.log(1.25) - math.log(delta))) / epsilon
    assert leaked(1 / usual, epsilon) > delta
    assert classical_sigma(1.0, epsilon, delta) is None


def test_leaked_against_the_definition() -> None:
    """sup over sets S of P(S) - e^ε·Q(S): all x where the likelihood ratio exceeds e^ε."""
    x = np.linspace(-40, 40, 2_000_001)
    for distance, epsilon in ((1.0, 0.5), (3.0, 1.0), (0.2, 0.1), (5.0, 8.0)):
        p, q = (np.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (distance, 0.0))
        worst = np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0])
        assert leaked(distance, epsilon) == pytest.approx(worst, rel=1e-5)


@pytest.mark.parametrize(
    "budget", [(0, 1e-5), (1, 0), (1, 1), (-1, 0.1), (math.nan, 0.1), (1, math.nan), (1e7, 0.1)]
)
def test_budgets_that_are_none(budget: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        analytic_sigma(1.0, *budget)


def test_recovery_from_a_noised_model(tmp_path: Path) -> None:
    training = random_training(11, tmp_path / "h")
    decided = plan(training.history, training.malicious, beta=1e9)
    given_ = training.problem.assumptions()
    wanted = {"epsilon": 0.5, "delta": 1e-5}
    sigma = certify(decided, assumptions=given_, noise=wanted).terms["noise.deviation"]
    assert sigma.flag == SOUND
    start = noised(decided, sigma.value, seed=7)
    assert noised(decided, sigma.value, seed=7).model.tobytes() == start.model.tobytes()
    assert noised(decided, sigma.value, seed=8).model.tobytes() != start.model.tobytes()
    steps = list(crab(decided, training.problem, after=start))
    plain = list(crab(decided, training.problem))
    assert [s.round for s in steps] == [s.round for s in plain]
    certificate = certify(
        decided,
        steps[-1].model,
        steps,
        assumptions=given_,
        noise=wanted,
        start=start.model,
        crab={"gap": True, "cap": 3.0, "settle": 2},
    )
    assert certificate.subject["start_model"] != decided.model
    length = np.linalg.norm(start.model.astype(float) - training.models[decided.rollback_round])
    assert certificate.terms["noise.length"].value == pytest.approx(length)
    assert noised(decided, 0.0, seed=7).model.tobytes() == training.models[decided.rollback_round].tobytes()
    with pytest.raises(ConfigError, match="finite"):
        noised(decided, math.inf, seed=7)


def test_the_noise_has_its_deviation(tmp_path: Path) -> None:
    from fedcrab import Field, History, Layout, Round, Updates

    layout = Layout((Field("w", (40_000,)), Field("seen", (10,), trained=False)))
    model = np.zeros(layout.size, np.float32)
    with History.create(tmp_path / "h", model, initial_loss=1.0, layout=layout) as history:
        sent = {c: (np.ones(layout.size, np.float32), 1) for c in "ab"}
        history.record(Round(0, model, Updates.of(sent), np.ones_like(model), 0.5, 0.1))
    start = noised(plan(History.open(tmp_path / "h"), {"a"}), 2.5, seed=1).model
    assert np.std(start[:40_000]) == pytest.approx(2.5, rel=0.02)
    assert not start[40_000:].any()
