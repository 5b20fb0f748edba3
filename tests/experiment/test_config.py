"""Configurations: what can be said, and what is said of what cannot."""

from pathlib import Path

import pytest

from fedcrab import ConfigError
from fedcrab.experiment.config import Config, load_config, presets
from fedcrab.experiment.names import ATTACKS, PARTITIONS, RULES, SELECTIONS
from fedcrab.experiment.setup import open_for_training, prepare


def test_the_papers_presets_carry_the_papers_settings() -> None:
    for name in ("paper-mnist", "paper-fashion-mnist", "paper-cifar10"):
        config = load_config(name)
        assert (config.clients.count, config.rounds, config.local.epochs) == (20, 40, 5)
        assert (config.local.learning_rate, config.local.batch, config.local.momentum) == (0.005, 64, 0)
        assert config.history.settings == {"alpha": 0.1, "rounds": 0.6, "clients": 0.7}
        assert config.data.name == name.removeprefix("paper-")


def test_settings_can_be_changed_one_by_one() -> None:
    changes = ["attack.fraction=0.5", "model=cnn", "clients.partition.name=dirichlet"]
    config = load_config("digits", [*changes, "clients.partition.settings.concentration=0.5"])
    assert config.attack.fraction == 0.5
    assert config.model == "cnn"
    assert config.clients.partition.settings == {"concentration": 0.5}


def test_a_configuration_survives_being_written_down() -> None:
    for name in presets():
        assert Config.from_json(load_config(name).to_json()) == load_config(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("roundz=3", "no setting 'roundz'; known here are seed, rounds"),
        ("local.lr=3", "no setting 'local.lr'; known here are learning_rate"),
        ("attack.when=3", "no setting 'attack.when'; known here are name, settings, fraction"),
        ("rounds=0", "rounds: input should be greater than or equal to 1, got 0"),
        ("rounds=many", "rounds: .* got 'many'"),
        ("local.momentum=nan", "local.momentum"),
        ("seed", "--set takes name=value"),
        ("rounds.x=1", "'rounds' is a value"),
    ],
)
def test_what_cannot_be_is_one_sentence(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        load_config("digits", [change])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.name=faces", "no data set 'faces'; there are digits"),
        ("attack.name=shout", "no attack 'shout'; there are backdoor"),
        ("attack.settings.colour=1", "attack 'backdoor' has no setting 'colour'; its settings are target"),
        ("attack.settings.trigger.colour=1", "a trigger has no setting 'colour'"),
        ("clients.partition.name=cake", "no partition 'cake'; there are iid"),
        ("clients.partition.settings.a=1", "partition 'iid' has no setting 'a'; it has no settings"),
        ("clients.count=100000", "too few"),
        ("model=transformer", "transformer"),
        ("data.probe=100000", "probe must be"),
    ],
)
def test_names_and_settings_that_nothing_has(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare(load_config("digits", [change]), workers=0)


def test_history_settings_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    for change, said in (
        ("history.name=some", "selective, every"),
        ("history.settings.l=1", "no setting 'l'"),
    ):
        setup = prepare(load_config("digits", [change]), workers=0)
        with pytest.raises(ConfigError, match=said):
            open_for_training(setup, tmp_path / "h", resume=False)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a readable file nor a preset; presets are digits"):
        load_config(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="not TOML"):
        load_config(str(tmp_path / "bad.toml"))
    (tmp_path / "good.toml").write_text("rounds = 3\n[data]\nname = 'synthetic'\n")
    assert load_config(str(tmp_path / "good.toml")).rounds == 3


SETTINGS_NEEDED = {
    "trimmed-mean": {"trim": 2},
    "krum": {"byzantine": 2},
    "multi-krum": {"byzantine": 2},
    "clipped-mean": {"limit": 1.0},
    "dirichlet": {"concentration": 0.5},
    "shards": {"classes_each": 2},
    "power-law": {"exponent": 1.0},
}


def run_two_rounds(tmp_path: Path, **tables: object) -> list[int]:
    from fedcrab.experiment.setup import run

    base = load_config("digits").model_dump()
    config = Config.model_validate({**base, "rounds": 2, "model": "softmax", **tables})
    setup = prepare(config, workers=0)
    with open_for_training(setup, tmp_path / "h", resume=False) as history:
        return [step.round for step in run(setup, history)]


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_be_named(name: str, tmp_path: Path) -> None:
    table = {"name": name, "settings": SETTINGS_NEEDED.get(name, {})}
    assert run_two_rounds(tmp_path, aggregation=table) == [0, 1]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_can_be_named(name: str, tmp_path: Path) -> None:
    assert run_two_rounds(tmp_path, attack={"name": name, "fraction": 0.25}) == [0, 1]


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition_can_be_named(name: str, tmp_path: Path) -> None:
    partition = {"name": name, "settings": SETTINGS_NEEDED.get(name, {})}
    assert run_two_rounds(tmp_path, clients={"count": 10, "partition": partition}) == [0, 1]


@pytest.mark.parametrize("name", SELECTIONS)
def test_every_selection_can_be_named(name: str, tmp_path: Path) -> None:
    assert run_two_rounds(tmp_path, history={"name": name}) == [0, 1]
