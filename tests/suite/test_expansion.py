"""From a suite to its cells: every combination once, and a key that tells what matters from what does not."""

from pathlib import Path

import pytest

from fedcrab import ConfigError, Every, Selective
from fedcrab.experiment.config import load
from fedcrab.suite.description import Choice, MethodChoice, Suite, load_suite
from fedcrab.suite.expansion import Cell, expand
from fedcrab.suite.job import cells_of, request_of
from fedcrab.suite.schedule import trainings

ROOT = Path(__file__).parent.parent.parent
FULL = Suite(
    base="paper-mnist",
    set={"rounds": 7},
    datasets=["mnist", Choice(name="cifar10", label="colours", set={"local.batch": 32})],
    models=["mlp", "softmax"],
    attacks=["backdoor", Choice(name="noise-trim", settings={"scale": 5.0})],
    fractions=[0.1, 0.5],
    partitions=["iid", Choice(name="dirichlet", settings={"alpha": 0.3})],
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
                    for partition, own in (("iid", "{}"), ("dirichlet", "{alpha = 0.3}")):
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
                                found.append(load("paper-mnist", changes))
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


def test_a_method_changes_nothing_about_its_training() -> None:
    first, second = one(), one(methods=[MethodChoice(method="crab-hardened", beta=0.9)])
    assert first.training == second.training != one(set={"rounds": 3}).training


def test_options_reach_the_decision_the_method_and_its_history() -> None:
    options = {"beta": 0.1, "gap": True, "history": {"clients": 0.5}}
    method = one(methods=[MethodChoice(method="crab-paper", **options)]).method
    assert dict(method.plan) == {"evidence": "stored", "rule": "last", "beta": 0.1}
    assert dict(method.settings) == {"gap": True, "cap": 100.0, "settle": 0}
    assert method.selection == Selective(clients=0.5)
    assert one(methods=[MethodChoice(method="federaser", history={"n": 1})]).method.selection == Every(1)


def test_a_method_in_one_line() -> None:
    line = one(methods=["crab-hardened beta=0.1 gap=false"])
    table = one(methods=[MethodChoice(method="crab-hardened", beta=0.1, gap=False)])
    assert line.key == table.key
    assert line.method.label == "crab-hardened beta=0.1 gap=false"


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda p: p.stem)
def test_the_suites_of_the_project_can_be_run(path: Path) -> None:
    cells = expand(load_suite(path))
    assert {dict(cell.labels)["dataset"] for cell in cells} == {"mnist"}
    assert len({cell.key for cell in cells}) == len(cells)


def test_a_job_is_asked_for_the_same_cells() -> None:
    import json

    group = next(iter(trainings(expand(FULL)).values()))
    told = json.loads(request_of(group, Path("results"), workers=0, keep=False))
    assert [cell.key for cell in cells_of(told)] == [cell.key for cell in group]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sedes = [1]", "no setting 'sedes'"),
        ("seeds = []", "at least one seed"),
        ('methods = ["pray"]', "no method 'pray'; there are retrain"),
        ('methods = ["crab-paper hope=1"]', "has no option 'hope'"),
        ('methods = ["  "]', "a method has no name"),
        ('methods = [{method = "crab-paper", gamma = 1}]', "has no option 'gamma'"),
        ('methods = [{method = "crab-paper", history = {n = 1}}]', "has no setting 'n'"),
        ('methods = ["crab-paper", {method = "crab-hardened", label = "crab-paper"}]', "two methods"),
        ('reference = "crab-paper"', "the reference 'crab-paper' is not among"),
        ('attacks = ["shout"]', "no attack 'shout'"),
        ('datasets = [{name = "digits", settings = {}}]', "takes no settings"),
        ("fractions = [0.001]", "leaves no attacker"),
        ("fractions = [1.0]", "or nobody else"),
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
