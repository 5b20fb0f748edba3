"""From a suite to its cells: every combination once, and a key that tells what matters from what does not."""

import datetime
import json
import tomllib
from pathlib import Path

import pytest

from fedcrab import Compact, ConfigError, Every, Everything, Selective
from fedcrab.attack import Trigger
from fedcrab.experiment.cell_cache import CellCache, _plain
from fedcrab.experiment.config import load_config
from fedcrab.experiment.matrix import Cell, expand
from fedcrab.experiment.rehearsal import rehearse
from fedcrab.experiment.scheduler import cells_of, request_of, trainings
from fedcrab.experiment.suite import AxisValue, MethodChoice, Suite, load_suite
from fedcrab.simulate.data import DATASETS, SIZES
from fedcrab.simulate.data import load_dataset as load_data

ROOT = Path(__file__).parent.parent.parent
FULL = Suite(
    base="paper-mnist",
    set={"rounds": 7},
    datasets=["mnist", AxisValue(name="cifar10", label="colours", set={"local.batch": 32})],
    models=["mlp", "softmax"],
    attacks=["backdoor", AxisValue(name="noise-trim", settings={"scale": 5.0})],
    fractions=[0.1, 0.5],
    partitions=["iid", AxisValue(name="dirichlet", settings={"concentration": 0.3})],
    vary={"clients.count": [10, 20]},
    methods=["retrain", "crab-paper", MethodChoice(method="crab-paper", beta=0.1)],
    seeds=[0, 1, 2],
)


def naive() -> list[tuple[dict[str, object], list[str]]]:
    """Nested loops over what the suite says, each as ``--set`` would have it."""
    found = []
    for dataset, batch in (("mnist", 64), ("cifar10", 32)):
        for model in ("mlp", "softmax"):
            for attack, settings in (("backdoor", "{}"), ("noise-trim", "{scale = 5.0}")):
                for fraction in (0.1, 0.5):
                    for partition, own in (("iid", "{}"), ("dirichlet", "{concentration = 0.3}")):
                        for count in (10, 20):
                            for seed in (0, 1, 2):
                                changes = [
                                    f"data.name={dataset}",
                                    f"local.batch={batch}",
                                    f"model={model}",
                                    f"attack.name={attack}",
                                    f"attack.settings={settings}",
                                    f"attack.fraction={fraction}",
                                    f"clients.partition.name={partition}",
                                    f"clients.partition.settings={own}",
                                    f"clients.count={count}",
                                    f"seed={seed}",
                                    "rounds=7",
                                    "history.name=everything",
                                    "history.settings={}",
                                ]
                                found.append(load_config("paper-mnist", changes))
    return found


def test_it_is_what_nested_loops_give() -> None:
    cells = expand(FULL)
    methods = ["poisoned", "retrain", "crab-paper", "crab-paper beta=0.1"]
    expected = [(config, method) for config in naive() for method in methods]
    assert [(cell.config, cell.method.label) for cell in cells] == expected
    assert len({cell.key for cell in cells}) == len(cells) == 2**6 * 3 * 4
    assert len(trainings(cells)) == 2**6 * 3


def test_labels_name_every_axis() -> None:
    labels = dict(expand(FULL)[-1].labels)
    assert labels == {
        "dataset": "colours",
        "model": "softmax",
        "attack": "noise-trim",
        "fraction": 0.5,
        "partition": "dirichlet",
        "clients.count": 20,
        "method": "crab-paper beta=0.1",
        "seed": 2,
    }


def one(**changes: object) -> Cell:
    """The last cell of a small suite."""
    return expand(Suite(**{"methods": ["crab-paper"], **changes}))[-1]


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"rounds": 31}},
        {"set": {"local.batch": 17}},
        {"set": {"attack.settings.poisoned": 0.4}},
        {"set": {"aggregation.name": "median"}},
        {"seeds": [1]},
        {"membership": True},
        {"methods": ["crab-hardened"]},
        {"methods": [MethodChoice(method="crab-paper", beta=0.2)]},
        {"methods": [MethodChoice(method="crab-paper", cap=7.0)]},
        {"methods": [MethodChoice(method="crab-paper", history={"rounds": 0.5})]},
        {"batches": "history"},
        {"methods": ["crab-paper batches=history"]},
    ],
)
def test_what_matters_changes_the_key(changes: dict[str, object]) -> None:
    assert one(**changes).key != one().key


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"rounds": 30}},
        {"set": {"attack.settings.poisoned": 0.5}},
        {"set": {"history.settings": {"rounds": 0.1}}},
        {"attacks": ["backdoor"]},
        {"methods": [MethodChoice(method="crab-paper", label="as published", beta=0.3, settle=0)]},
        {"measures": ["ta"], "reference": "crab-paper"},
    ],
)
def test_what_does_not_matter_leaves_the_key(changes: dict[str, object]) -> None:
    assert one(**changes).key == one().key


KEYS = json.loads((ROOT / "tests" / "fixtures" / "cell-keys.json").read_text())


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row["key"])
def test_keys_are_what_they_were(row: dict) -> None:
    """Made before keys had texts of their own; whatever classes are called, published cells are found."""
    cell = expand(Suite(**row["suite"]))[-1]
    assert (cell.key, cell.training) == (row["key"], row["training"])


def test_a_key_depends_on_no_class_name_or_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {kind: kind.__name__ for kind in (Selective, Every, Everything, Compact, Trigger)}
    try:
        for kind in kinds:
            monkeypatch.setattr(kind, "__repr__", lambda _: "changed")
            kind.__name__ = "Renamed"
        assert [expand(Suite(**row["suite"]))[-1].key for row in KEYS] == [row["key"] for row in KEYS]
    finally:
        for kind, name in kinds.items():
            kind.__name__ = name


def test_every_part_of_a_trigger_is_in_the_key() -> None:
    for trigger in (
        Trigger(),
        Trigger(size=3, value=-0.5, image=(3, 32, 32), part=1, parts=4),
        Trigger(2, 1),
    ):
        assert _plain({"trigger": trigger}) == {"trigger": repr(trigger)}


def test_a_setting_that_json_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="a setting must be text, a number"):
        one(set={"attack.settings.target": datetime.date(2026, 1, 1)})


def test_a_method_changes_nothing_about_its_training() -> None:
    first, second = one(), one(methods=[MethodChoice(method="crab-hardened", beta=0.9)])
    assert first.training == second.training != one(set={"rounds": 3}).training


def test_options_reach_the_decision_the_method_and_its_history() -> None:
    options = {"beta": 0.1, "gap": True, "history": {"clients": 0.5}}
    method = one(methods=[MethodChoice(method="crab-paper", **options)]).method
    assert dict(method.plan) == {"evidence": "stored", "rule": "last", "beta": 0.1}
    assert dict(method.settings) == {"gap": True, "cap": 100.0, "settle": 0, "everyone": False}
    assert method.selection == Selective(clients=0.5)
    assert one(methods=[MethodChoice(method="federaser", history={"n": 1})]).method.selection == Every(1)


def test_the_batches_of_a_suite_are_those_of_every_method_that_does_not_say() -> None:
    methods = ["crab-paper", "replay", "retrain-few batches=history"]
    drawn = {cell.method.label: cell.method.batches for cell in expand(Suite(methods=methods))}
    assert {*drawn.items()} >= {("poisoned", "fresh"), ("retrain", "fresh"), ("replay", "fresh")}
    assert drawn["retrain-few batches=history"] == "history"
    told = [cell.identity["method"].get("batches") for cell in expand(Suite(methods=methods))]
    assert told == ["fresh", "fresh", "fresh", None, None]  # replay has drawn fresh ones from the beginning


def test_a_method_in_one_line() -> None:
    line = one(methods=["crab-hardened beta=0.1 gap=false"])
    table = one(methods=[MethodChoice(method="crab-hardened", beta=0.1, gap=False)])
    assert line.key == table.key
    assert line.method.label == "crab-hardened beta=0.1 gap=false"


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda p: p.stem)
def test_the_suites_of_the_project_can_be_run(path: Path) -> None:
    cells = expand(load_suite(path))
    assert {dict(cell.labels)["dataset"] for cell in cells} <= {"mnist", "fashion-mnist", "cifar10"}
    assert cells
    assert len({cell.key for cell in cells}) == len(cells)


def test_a_job_is_asked_for_the_same_cells() -> None:
    group = next(iter(trainings(expand(FULL)).values()))
    told = json.loads(json.dumps(request_of(group, CellCache(Path("results")), workers=0, keep=False)))
    assert [cell.key for cell in cells_of(told)] == [cell.key for cell in group]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sedes = [1]", "no setting 'sedes'"),
        ("seeds = []", "at least one seed"),
        ('methods = ["pray"]', "no method 'pray'; there are retrain"),
        ('methods = ["crab-paper hope=1"]', "has no option 'hope'"),
        ('methods = ["  "]', "a method has no name"),
        ('batches = "stale"', "no kind of batches 'stale'; there are fresh, history"),
        ('methods = [{method = "crab-paper", gamma = 1}]', "has no option 'gamma'"),
        ('methods = [{method = "crab-paper", history = {n = 1}}]', "has no setting 'n'"),
        ('methods = ["crab-paper", {method = "crab-hardened", label = "crab-paper"}]', "two methods"),
        ('reference = "crab-paper"', "the reference 'crab-paper' is not among"),
        ('attacks = ["shout"]', "no attack 'shout'"),
        ('datasets = [{name = "digits", settings = {}}]', "has no settings"),
        ("fractions = [0.001]", "leaves no attacker"),
        ("fractions = [1.0]", "or no honest clients"),
        ("fractions = [2.0]", "less than or equal to 1"),
        ('measures = ["luck"]', "no measure 'luck'"),
        ('base = "nowhere"', "neither a readable file nor a preset"),
        ("set = {rounds = 0}", "rounds"),
        ('set = {"rounds.x" = 1}', "'rounds' is a value"),
        ("seeds = [", "not TOML"),
    ],
)
def test_a_suite_that_cannot_be_is_refused_in_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        [cell.key for cell in expand(load_suite(tmp_path / "suite.toml"))]
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_base_beside_the_suite(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('rounds = 3\n[attack]\nname = "ipm"\n')
    (tmp_path / "suite.toml").write_text('base = "mine.toml"')
    cells = expand(load_suite(tmp_path / "suite.toml"))
    assert [cell.method.label for cell in cells] == ["poisoned", "retrain"]
    assert cells[0].config.rounds == 3


def test_since_is_rehearsed_by_the_rounds_of_the_training() -> None:
    rehearse(expand(Suite(methods=["replay since=20"], set={"rounds": 40})))
    with pytest.raises(ConfigError, match="from round 40 on"):
        rehearse(expand(Suite(methods=["replay since=40"], set={"rounds": 40})))


def test_a_whole_suite_passes_the_rehearsal() -> None:
    rehearse(expand(FULL))
    for path in sorted((ROOT / "experiments").glob("*.toml")):
        if "base" in tomllib.loads(path.read_text()):
            rehearse(expand(load_suite(path)))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"partitions": ["iid", AxisValue(name="dirichlet", settings={"alpha": 0.3})]}, "no setting 'alpha'"),
        ({"partitions": ["iid", "dirichlet"]}, "concentration"),
        ({"partitions": [AxisValue(name="dirichlet", settings={"concentration": -1})]}, "above 0, got -1"),
        (
            {"partitions": [AxisValue(name="dirichlet", settings={"concentration": "x"})]},
            "partition 'dirichlet'",
        ),
        ({"partitions": [AxisValue(name="shards", settings={"classes_each": 900})]}, "too few"),
        ({"partitions": ["piles"]}, "no partition 'piles'"),
        ({"attacks": ["backdoor", "theft"]}, "no attack 'theft'"),
        ({"attacks": [AxisValue(name="backdoor", settings={"strength": 2})]}, "no setting 'strength'"),
        ({"attacks": [AxisValue(name="backdoor", settings={"poisoned": 2})]}, "poisoned must be"),
        ({"attacks": [AxisValue(name="backdoor", settings={"trigger": {"size": 9}})]}, "trigger"),
        ({"attacks": ["backdoor"], "datasets": ["synthetic"]}, "trigger"),
        ({"models": ["mlp", "transformer"]}, "no model 'transformer'"),
        ({"models": ["cnn"], "datasets": ["synthetic"], "attacks": ["sign-flip"]}, "needs images"),
        ({"datasets": ["digits", "moons"]}, "no data set 'moons'"),
        ({"set": {"data.probe": 1437}}, "data.probe must be below 1437"),
        ({"vary": {"clients.count": [20, 2000]}}, "too few"),
        ({"vary": {"aggregation.name": ["fedavg", "mode"]}}, "no rule 'mode'"),
        ({"set": {"aggregation.name": "krum", "aggregation.settings": {"byzantine": 19}}}, "byzantine=19"),
        ({"methods": ["crab-hardened cap=-1"]}, "cap must be"),
        ({"methods": ["crab-hardened beta=-1"]}, "beta"),
        ({"methods": ["crab-hardened evidence=hearsay"]}, "hearsay"),
        ({"methods": ["fedrecover warm_up=0"]}, "warm_up must be"),
        ({"methods": ["federaser cap=0"]}, "cap must be"),
    ],
)
def test_what_cannot_be_is_found_before_anything_trains(bad: dict, said: str) -> None:
    """The error names the cell; today's settings without the bad one pass."""
    rehearse(expand(Suite()))
    with pytest.raises(ConfigError, match=r"cell \(dataset .*seed 0\): ") as refused:
        rehearse(expand(Suite(**bad)))
    assert said in str(refused.value)


def test_sizes_are_those_of_the_data() -> None:
    for name in ("digits", "synthetic"):
        dataset, size = load_data(name), SIZES[name]
        assert (len(dataset.train_y), dataset.shape, dataset.classes) == (
            size.examples,
            size.shape,
            size.classes,
        )
    assert SIZES.keys() == DATASETS.keys()


def test_values_of_one_name_are_told_apart_by_their_settings() -> None:
    uneven = [AxisValue(name="dirichlet", settings={"concentration": c}) for c in (0.1, 0.5)]
    cells = expand(FULL.model_copy(update={"partitions": ["iid", *uneven]}))
    assert {dict(cell.labels)["partition"] for cell in cells} == {
        "iid",
        "dirichlet concentration=0.1",
        "dirichlet concentration=0.5",
    }
    named = [uneven[0], uneven[1].model_copy(update={"label": "dirichlet concentration=0.1"})]
    labels = {
        dict(cell.labels)["partition"] for cell in expand(FULL.model_copy(update={"partitions": named}))
    }
    assert labels == {"dirichlet", "dirichlet concentration=0.1"}
    same = [value.model_copy(update={"label": "uneven"}) for value in uneven]
    with pytest.raises(ConfigError, match="both called 'uneven'"):
        expand(FULL.model_copy(update={"partitions": same}))
