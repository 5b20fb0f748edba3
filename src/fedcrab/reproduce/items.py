"""The tables and figures of the paper's evaluation and the baselines that it leaves out, each as a suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcrab.experiment.suite import AxisValue, MethodChoice, Suite

PAPER_DATASETS = ("mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True)
class Scale:
    """How much of the evaluation is run (examples, rounds, model), and what readers must know about it."""

    name: str
    says: str
    base: str
    set: Mapping[str, Any] = field(default_factory=dict)
    datasets: tuple[str, ...] = PAPER_DATASETS
    fractions: tuple[float, ...] = (0.1, 0.25, 0.5)
    seeds: tuple[int, ...] = (0, 1, 2)
    lambdas: tuple[float, ...] = (0.3, 0.5, 0.6, 0.7, 0.9)
    deltas: tuple[float, ...] = (0.3, 0.5, 0.7, 0.8, 1.0)
    betas: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)

    @property
    def judges(self) -> bool:
        """Whether results at this scale say anything about the paper: one of its data sets is used."""
        return bool({*self.datasets} & {*PAPER_DATASETS})

    def first(self, dataset: str) -> str:
        """Return the data set that is used instead of one of the paper's."""
        return dataset if dataset in self.datasets else self.datasets[0]


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            "scikit-learn's digits instead of the three data sets, 10 clients, 6 rounds, an MLP, one seed: "
            "this shows that everything runs and says nothing about the paper",
            "digits",
            {"rounds": 6, "clients.count": 10, "local.learning_rate": 0.2, "attack.settings.boost": 1.0},
            datasets=("digits",),
            fractions=(0.25, 0.5),
            seeds=(0,),
            lambdas=(0.3, 0.6),
            deltas=(0.3, 0.7),
            betas=(0.1, 0.9),
        ),
        Scale(
            "laptop",
            "20 clients with 600 examples each (the paper: all examples, 3,000 or 2,500 per client), 40 "
            "rounds of 5 local epochs, batches of 64, an MLP with 128 hidden units, three seeds; the "
            "learning rate is 0.025, five times the paper's, because there are a fifth as many steps",
            "paper-mnist",
            {"model": "mlp", "data.examples_per_client": 600, "local.learning_rate": 0.025},
        ),
        Scale(
            "full",
            "20 clients with all examples, 40 rounds of 5 local epochs, batches of 64, learning rate 0.005, "
            "as in the paper; a small CNN (the paper does not name its model), three seeds",
            "paper-mnist",
        ),
    )
}
# The paper runs FedEraser with an interval of one.
FEDERASER = MethodChoice(method="federaser", label="federaser", history={"n": 1})
# Crab's options when these results were published: the decision tolerated some poison, and only selected
# clients were asked in the last rounds.
CRABS: Mapping[str, Mapping[str, Any]] = {
    "crab-paper": {},
    "crab-hardened": {"beta": 0.3, "everyone": False},
}
METHODS: Sequence[str | MethodChoice] = (
    "retrain",
    FEDERASER,
    MethodChoice.model_validate({"method": "fedrecover", "label": "fedrecover", "rollback": False}),
    *(MethodChoice(method=name, label=name, **options) for name, options in CRABS.items()),
)
# What a user has today, and what they would do without a recovery method.
BASELINES: Sequence[str] = (
    *("retrain", "retrain-few per_round=2", "retrain-few per_round=5", "finetune", "subtract-and-distil"),
    *("crab-hardened beta=0", "replay", "replay trust=true"),
)
TRIM = AxisValue(name="noise-trim", settings={"scale": 5.0})


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper."""

    name: str
    title: str
    place: str  # in the paper
    suite: Callable[[Scale], Suite]
    measures: tuple[str, ...]
    says: str = ""  # what to know when reading the table
    compared: str | None = "ta"  # the measure that is tested against retraining


def _suite(scale: Scale, **more: Any) -> Suite:
    common: dict[str, Any] = {
        "base": scale.base,
        "set": dict(scale.set),
        "methods": list(METHODS),
        "seeds": list(scale.seeds),
        "membership": True,
        "batches": "history",  # as when these results were published
    }
    return Suite(**{**common, **more})


def _backdoor(*datasets: str, every_fraction: bool) -> Callable[[Scale], Suite]:
    def suite(scale: Scale) -> Suite:
        fractions = scale.fractions if every_fraction else scale.fractions[-1:]
        chosen = list(dict.fromkeys(scale.first(name) for name in datasets))
        return _suite(scale, datasets=chosen, attacks=["backdoor"], fractions=list(fractions))

    return suite


def _baselines(scale: Scale) -> Suite:
    """Return a suite of the same trainings in which clients draw new batches when they are asked again."""
    return _suite(
        scale,
        datasets=[scale.first("mnist")],
        attacks=["backdoor"],
        fractions=list(scale.fractions),
        methods=list(BASELINES),
        membership=False,
        batches="fresh",
    )


def _trim(scale: Scale) -> Suite:
    half = list(scale.fractions[-1:])
    return _suite(scale, datasets=list(scale.datasets), attacks=[TRIM], fractions=half, membership=False)


def _sweep(name: str, values: Callable[[Scale], Sequence[float]]) -> Callable[[Scale], Suite]:
    """Both presets of Crab with one setting varied; all recover from the same trainings."""

    def suite(scale: Scale) -> Suite:
        methods = [_varied(crab, name, value) for crab in CRABS for value in values(scale)]
        return _suite(
            scale,
            datasets=[scale.first("fashion-mnist")],
            attacks=["backdoor"],
            fractions=list(scale.fractions[-1:]),
            methods=methods,
        )

    return suite


def _varied(crab: str, name: str, value: float) -> MethodChoice:
    symbol = {"rounds": "λ", "clients": "δ", "beta": "β"}[name]
    options: dict[str, Any] = {name: value} if name == "beta" else {"history": {name: value}}
    return MethodChoice(method=crab, label=f"{crab} {symbol}={value:g}", **{**CRABS[crab], **options})


DATASETS = ("mnist", "fashion-mnist", "cifar10")
ITEMS: Mapping[str, Item] = {
    item.name: item
    for item in (
        Item(
            "memory",
            "Memory and computation",
            "Table II",
            _backdoor("mnist", every_fraction=True),
            ("bytes", "rounds", "client_rounds", "sample_gradients"),
            "Bytes are the size of the history on disk. The paper counts update vectors; our history stores "
            "Gram matrices instead. FedEraser uses half as many local epochs as the other methods.",
            compared=None,
        ),
        Item(
            "time",
            "Running time of a recovery round",
            "Table III",
            _backdoor(*DATASETS, every_fraction=False),
            ("seconds_a_round", "rounds", "seconds"),
            "Seconds depend on the machine, the model and the number of examples, so only ratios between "
            "methods can be compared with the paper. The last column is the whole recovery, including the "
            "server's own work.",
            compared=None,
        ),
        Item(
            "curves",
            "Loss while recovering",
            "Figure: loss descent",
            _backdoor(*DATASETS, every_fraction=True),
            ("rounds", "client_rounds", "ta"),
            "The loss is measured on the server's probe set.",
        ),
        Item(
            "rollback",
            "How far the model is rolled back",
            "Section on recovery speed",
            _backdoor(*DATASETS, every_fraction=True),
            ("rollback_round", "rounds", "ta", "asr"),
            "The round from which the recovery starts, for each seed.",
        ),
        Item(
            "backdoor-mnist",
            "Test accuracy after a backdoor, MNIST",
            "Figure: MNIST test accuracy",
            _backdoor("mnist", every_fraction=True),
            ("ta", "asr", "client_rounds", "distance"),
        ),
        Item(
            "backdoor-others",
            "Test accuracy after a backdoor at 50%, Fashion-MNIST and CIFAR-10",
            "Figure: Fashion-MNIST and CIFAR-10 test accuracy",
            _backdoor("fashion-mnist", "cifar10", every_fraction=False),
            ("ta", "asr", "client_rounds", "distance"),
        ),
        Item(
            "trim",
            "Test accuracy after the Trim attack",
            "Figure: trim attack test accuracy",
            _trim,
            ("ta", "client_rounds", "distance"),
            "Half of the clients attack. They add noise to 10% of the coordinates, five times the standard "
            "deviation of the update; the paper gives neither number.",
        ),
        Item(
            "resilience",
            "ASR and MISR after recovery",
            "Figure: MISR and ASR",
            _backdoor(*DATASETS, every_fraction=False),
            ("asr", "asr_with_target", "misr", "misr_balanced_accuracy", "misr_auc"),
            compared="misr",
            says="MISR is the recall of membership inference on the malicious clients' clean examples. It is "
            "meaningful only beside that of the retrained model, and beside balanced accuracy, where 50% is "
            "chance.",
        ),
        Item(
            "lambda",
            "Share of rounds kept, λ",
            "Figure: selection ratios",
            _sweep("rounds", lambda scale: scale.lambdas),
            ("ta", "asr", "rounds", "client_rounds", "bytes"),
        ),
        Item(
            "delta",
            "Share of clients kept, δ",
            "Figure: selection ratios",
            _sweep("clients", lambda scale: scale.deltas),
            ("ta", "asr", "rounds", "client_rounds"),
        ),
        Item(
            "beta",
            "Sensitivity threshold β",
            "Figure: adaptive rollback",
            _sweep("beta", lambda scale: scale.betas),
            ("ta", "asr", "rollback_round", "client_rounds"),
        ),
        Item(
            "baselines",
            "Today's default, and what a user would do without it",
            "Not in the paper",
            _baselines,
            ("ta", "asr", "contact_rounds", "client_rounds", "bytes", "distance"),
            "`replay` is the default method, from a `Compact` history; `crab-hardened beta=0` is today's "
            "preset. `retrain-few` trains again with few honest clients per round, `finetune` continues from "
            "the poisoned model with honest clients, `subtract-and-distil` asks no client. Unlike in the "
            "other items, clients draw other batches when they are asked again.",
        ),
    )
}
