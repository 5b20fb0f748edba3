"""The shadow run of membership inference: the same training on other data, where membership is known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from fedcrab.aggregate import fedavg
from fedcrab.evaluate import AttackModel, Membership, fit_attack_model, membership
from fedcrab.experiment.setup import Setup
from fedcrab.seeds import rng_for
from fedcrab.simulate import Dataset, LocalTraining, SimulatedFleet, iid, initial_model
from fedcrab.simulate.data import Images
from fedcrab.types import ClientId, Vector


@dataclass(frozen=True)
class MembershipTest:
    """An attack model fitted to a shadow run, and the examples to try it on."""

    setup: Setup
    attack: AttackModel
    members: Images  # the malicious clients' clean examples
    others: Images  # test examples that neither training nor the shadow run has seen

    def of(self, model: Vector) -> Membership:
        """How well membership in the malicious clients' data is told from this model."""
        predict = self.setup.predictor.predict
        return membership(self.attack, predict, model, self.members, self.others)


def membership_test(setup: Setup, malicious: Collection[ClientId]) -> MembershipTest:
    """Train a shadow model as the real one was, on examples that no client has, and fit the attack."""
    shadow, others = _shadow_data(setup)
    model = _shadow_model(setup, shadow)
    predict = setup.predictor.predict
    attack = fit_attack_model(predict(model, shadow.train_x), predict(model, shadow.test_x))
    members = np.concatenate([setup.honest.examples(client)[0] for client in sorted(malicious)])
    return MembershipTest(setup, attack, members, others)


def _shadow_data(setup: Setup) -> tuple[Dataset, Images]:
    """Members and others of the shadow run, and the test examples left for the real one.

    Training examples that no client has, where there are enough for as many as the clients have;
    otherwise half of the test part.
    """
    data, seed = setup.dataset, setup.config.seed
    used = np.concatenate(setup.parts)
    spare = np.setdiff1d(np.arange(len(data.train_y)), used)
    if len(spare) >= 2 * len(used):
        order = rng_for(seed, "shadow").permutation(spare)[: 2 * len(used)]
        x, y, others = data.train_x[order], data.train_y[order], data.test_x
    else:
        order = rng_for(seed, "shadow").permutation(len(data.test_y))
        half, rest = np.array_split(order, 2)
        x, y, others = data.test_x[half], data.test_y[half], data.test_x[rest]
    cut = len(y) // 2
    shadow = replace(data, train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])
    return shadow, others


def _shadow_model(setup: Setup, shadow: Dataset) -> Vector:
    config = setup.config
    count = min(config.clients.count, len(shadow.train_y))
    parts = iid(shadow.train_y, clients=count, seed=config.seed)
    local = LocalTraining(**config.local.model_dump())
    model, rule = initial_model(setup.architecture, seed=config.seed), fedavg()
    with SimulatedFleet(shadow, parts, setup.architecture, seed=config.seed, local=local) as fleet:
        for t in range(config.rounds):
            updates = fleet.train(model, fleet.clients, round=t)
            model = model + rule(updates.vectors, updates.weights)
    return model
