"""Who taught it, and since when."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from audit.conftest import Training, stamped, trained
from fedcrab import ConfigError, HistoryError, Layout
from fedcrab.audit import (
    Attribution,
    FlatModel,
    Inversion,
    attribute,
    taught_examples,
    taught_trigger,
    timeline,
)
from fedcrab.audit.attribution import orthogonal_part, relative_to_top, weighted
from fedcrab.audit.naming import certain_group, widest_gap


def test_the_teachers_are_named_and_nobody_else(planted: Training, found: Inversion) -> None:
    detection, parts = taught_trigger(planted.history, planted.flat, found, planted.x, planted.y)
    assert planted.bad == set(detection.suspects)
    assert "taught the trigger for class 0, from round" in detection.suspicions[detection.suspects[0]].reason
    ranked = [parts.clients[i] for i in np.argsort(-parts.scores)]
    assert set(ranked[: len(planted.bad)]) == planted.bad
    assert all(3 <= parts.onset(client) <= 6 for client in planted.bad)


def test_ten_brought_examples_rank_the_same_first(planted: Training) -> None:
    x = stamped(planted.setup.dataset.test_x[planted.setup.dataset.test_y != 0])
    taken = x[planted.flat.predict(planted.history.final_model(), x) == 0][:10]
    labels = np.zeros(len(taken), np.int64)
    detection, _ = taught_examples(planted.history, planted.flat, taken, labels, planted.x, planted.y)
    assert planted.bad >= set(detection.suspects)
    ranked = sorted(detection.scores, key=lambda client: -detection.scores[client])
    assert set(ranked[: len(planted.bad)]) == planted.bad


def test_one_example_is_a_ranking_and_no_verdict(planted: Training) -> None:
    """A name needs examples that agree: one has none to agree with."""
    x = stamped(planted.setup.dataset.test_x[planted.setup.dataset.test_y != 0])
    taken = x[planted.flat.predict(planted.history.final_model(), x) == 0][:1]
    one, parts = taught_examples(
        planted.history, planted.flat, taken, np.zeros(1, np.int64), planted.x, planted.y
    )
    assert parts.named
    assert one.suspects == ()
    assert any("only a ranking" in note for note in one.notes)


def test_four_bits_name_the_same(planted: Training, found: Inversion, tmp_path: Path) -> None:
    """A Compact history of the same training: updates of 4 bits, models partly rebuilt from them."""
    compact = trained(tmp_path / "h", "history={name='compact'}")
    assert len(compact.history.kept) < 16
    exact, _ = taught_trigger(planted.history, planted.flat, found, planted.x, planted.y)
    packed, parts = taught_trigger(compact.history, compact.flat, found, compact.x, compact.y)
    assert packed.suspects == exact.suspects
    assert parts.rounds == tuple(range(16))


def test_a_is_the_gradient_times_the_update(planted: Training) -> None:
    """Against autograd on the module itself, one client and round at a time."""
    x, y = planted.x[:6], np.full(6, 3)
    parts = attribute(planted.history, planted.flat, x, y, plain=planted.x[6:9])
    module = planted.setup.architecture.build()
    for t, client in ((0, "4"), (9, "17")):
        start = planted.history.model(t)
        views = planted.history.charter.layout.views(start)
        module.load_state_dict({name: torch.tensor(view) for name, view in views.items()})
        module.zero_grad()
        nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y)).backward()
        gradient = np.concatenate([p.grad.numpy().ravel() for p in module.parameters() if p.grad is not None])
        updates = planted.history.updates(t)
        own = updates.vectors[updates.clients.index(client)]
        assert parts.lowers[t, parts.clients.index(client)] == pytest.approx(-float(gradient @ own), rel=1e-3)


def test_the_contrast_is_what_the_odds_rise_by(planted: Training) -> None:
    """A tiny step along an update changes the log odds as d says."""
    x, y, plain = planted.x[:6], np.full(6, 3), planted.x[6:12]
    parts = attribute(planted.history, planted.flat, x, y, plain=plain)
    t, row, small = 8, 5, 1e-3
    start, update = planted.history.model(t).astype(np.float64), planted.history.updates(t).vectors[row]

    def odds(model: Any, images: Any) -> float:
        module = planted.setup.architecture.build().double()
        views = planted.history.charter.layout.views(model)
        module.load_state_dict({name: torch.tensor(view) for name, view in views.items()})
        with torch.no_grad():
            p = torch.softmax(module(torch.tensor(images).double()), 1)[:, 3]
        return float(torch.log(p / (1 - p)).mean())

    def difference(model: Any) -> float:
        return odds(model, x) - odds(model, plain)

    rise = (difference(start + small * update) - difference(start - small * update)) / (2 * small)
    assert parts.contrast[t, row] == pytest.approx(rise, rel=1e-2)


def test_weights_and_parts_by_hand() -> None:
    lowers = np.array([[1.0, 3.0, 2.0], [-4.0, -2.0, 0.0], [0.0, np.nan, 2.0]])
    own = np.array([[2.0, 0.0, 4.0], [9.0, 9.0, 9.0], [2.0, np.nan, 0.0]])
    parts = Attribution(("a", "b", "c"), (0, 3, 4), lowers, own, own, np.zeros((3, 3)), own)
    np.testing.assert_allclose(parts.weights, [2.0, 0.0, 1.0])
    np.testing.assert_allclose(weighted(own, parts.weights), [2.0, 0.0, 8 / 3])
    np.testing.assert_allclose(weighted(lowers, parts.weights), [2 / 3, 3.0, 2.0])
    np.testing.assert_allclose(parts.parts, [2 * 4 / 15, 0.0, 8 / 7])  # a is beside 2.5, own beside 7/3
    np.testing.assert_allclose(parts.scores, np.array([4 / 15 + 12 / 7, 1.2, 0.8 + 16 / 7]) / (0.8 + 16 / 7))
    np.testing.assert_allclose(relative_to_top(np.array([-1.0, -2.0, -3.0])), 0)
    assert parts.cut.strength == 0  # three clients are too few
    assert parts.named == ()


def taught_by(values: list[float], *, natural: float = 0.0, own: float = 1.0) -> Attribution:
    """One round in which each client taught so much, a share of it by teaching the class itself."""
    row = np.array([values])
    clients = tuple(map(str, range(len(values))))
    return Attribution(clients, (0,), row, row, row, natural * row, own * row)


def test_names_need_a_gap_and_no_other_reason() -> None:
    apart = [0.55, 0.5, 0.6, 1.0, *np.linspace(-0.2, 0.1, 16)]
    assert taught_by(apart).named == ("0", "1", "2", "3")
    assert taught_by(apart, natural=0.3).named == ()  # they taught what the class looks like
    assert taught_by(apart, own=0.05).named == ()
    sure = taught_by([1.0, 0.9, 1.1, 0.95, *np.linspace(-0.1, 0.05, 16)], natural=0.3)
    assert sure.named == ("0", "1", "2", "3")  # so far apart that nothing explains it
    assert taught_by(list(np.linspace(-0.2, 1.1, 20))).named == ()
    between = taught_by([1.0, 0.9, 1.1, 0.95, 0.7, 0.55, 0.4, 0.3, *np.linspace(-0.2, 0.15, 12)])
    assert between.named == ()
    most = taught_by([1.0] * 12 + [0.0] * 8)  # half of the clients can be named, not more
    assert len(most.named) <= 10
    assert taught_by([0.0] * 20).named == ()
    assert taught_by([-1.0, -1.1, *np.linspace(-9, -8, 18)]).named == ()


def test_the_gap_by_hand() -> None:
    group, gap = widest_gap(np.array([0.0, 5.0, 1.0, 0.5, 0.2, 0.7]))
    assert group.tolist() == [False, True, False, False, False, False]
    assert gap == pytest.approx(4 / np.hypot(np.std([0, 0.2, 0.5, 0.7, 1], ddof=1), 0.08))


def test_what_teaching_the_class_explains_by_hand() -> None:
    """E = s − 0.6·max(n, 0) + 2·own, beside the mean of the two greatest; n = natural + s − contrast."""
    s, p, n, own = (np.array([row]) for row in ([4.0, 3, -2], [3.0, 1, -1], [2.5, 5, -4], [1.0, 0.5, 0.25]))
    parts = Attribution(("a", "b", "c"), (0,), s, s, s - p, n - p, own)
    expected = np.array([4 - 1.5 + 2, 3 - 3 + 1, -2 + 0.5])
    np.testing.assert_allclose(parts.unexplained, expected / 2.75)
    assert parts.named_for_certain_trigger == ()  # three clients are too few


def test_a_certain_trigger_was_taught_by_those_above_the_widest_gap() -> None:
    rest = np.linspace(-0.5, 0.0, 12)
    assert np.flatnonzero(certain_group(np.array([1.0, 0.9, 0.5, 0.28, *rest]))).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(certain_group(np.array([1.0, 0.9, 0.5, 0.22, *rest, 0.2]))).tolist() == [0, 1, 2]
    assert not certain_group(np.array([1.0] * 9 + [0.0] * 8)).any()  # more than half: nobody is named
    assert not certain_group(np.array([1.0, 0.0, 0.0])).any()  # too few clients


def test_the_own_part_is_orthogonal_part() -> None:
    rng = np.random.default_rng(0)
    vector, first, second = rng.normal(size=(3, 50))
    rest = orthogonal_part(vector, first, second)
    assert abs(rest @ first) < 1e-9
    assert abs(rest @ second) < 1e-9
    fit = np.linalg.lstsq(np.stack([first, second], 1), vector, rcond=None)[0]
    np.testing.assert_allclose(rest, vector - fit[0] * first - fit[1] * second, atol=1e-9)
    np.testing.assert_allclose(orthogonal_part(vector, first, first), orthogonal_part(vector, first))
    np.testing.assert_allclose(orthogonal_part(vector, np.zeros(50)), vector)


def test_a_clean_training_names_nobody(clean: Training) -> None:
    """Not for natural mistakes that are brought, nor for what is no trigger."""
    test = clean.setup.dataset
    said = clean.flat.predict(clean.history.final_model(), test.test_x)
    wrong = np.flatnonzero(said != test.test_y)[:10]
    detection, _ = taught_examples(
        clean.history, clean.flat, test.test_x[wrong], said[wrong], clean.x, clean.y
    )
    assert detection.suspects == ()
    assert detection.strength < 1
    assert any("only a ranking" in note for note in detection.notes)


def test_when_it_was_planted(planted: Training, found: Inversion) -> None:
    told = timeline(planted.history, planted.flat, found, planted.x, planted.y)
    assert told.rounds == tuple(range(17))
    assert told.planted is not None
    assert 4 <= told.planted <= 8
    assert told.lifts[-1] >= 0.8
    assert told.lifts[3] < 0.3


def test_a_model_that_says_one_class_always_has_no_trigger(planted: Training, found: Inversion) -> None:
    from fedcrab.audit.timeline import lift

    constant = np.zeros(planted.history.charter.layout.size, np.float32)
    constant[-10] = 1.0  # the bias of class 0
    plain = planted.x[planted.y != 0]
    assert lift(planted.flat, constant, plain, found.stamp(plain), 0) == 0


def test_without_updates_it_cannot_be_told(tmp_path: Path, found: Inversion) -> None:
    short = trained(tmp_path / "h", "rounds=3", "history={name='selective'}")
    with pytest.raises(HistoryError, match="keeps no update vectors, which attribution needs"):
        taught_trigger(short.history, short.flat, found, short.x, short.y)


def test_a_module_of_another_shape_is_refused(planted: Training) -> None:
    with pytest.raises(ConfigError, match="tensors differ from the recorded model"):
        FlatModel(nn.Linear(3, 2), planted.history.charter.layout)
    with pytest.raises(ConfigError, match="must map"):
        FlatModel(nn.Flatten(0), Layout(())).at(np.zeros(0, np.float32))(torch.zeros(2, 3))
    with pytest.raises(ConfigError, match="needs misbehaving examples"):
        attribute(planted.history, planted.flat, planted.x[:0], planted.y[:0], plain=planted.x)


def test_buffers_are_part_of_the_model_and_of_no_gradient() -> None:
    """BatchNorm's running means are read, its counter is an integer, neither has a gradient."""
    from fedcrab.simulate.models import layout_of, read, tensors

    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    module[2].running_mean += 0.5
    layout = layout_of(module)
    flat, vector = FlatModel(module, layout), read(list(tensors(module).values())).numpy()
    x = np.random.default_rng(0).normal(size=(5, 1, 2, 2)).astype(np.float32)
    with torch.no_grad():
        expected = module.eval()(torch.tensor(x))
    np.testing.assert_allclose(flat.at(vector)(torch.tensor(x)).detach(), expected, rtol=1e-5)
    gradient = flat.gradient(vector, x, np.array([0, 1, 2, 0, 1]))
    trained_part = sum(f.size for f in layout.fields if f.trained)
    assert np.abs(gradient[:trained_part]).sum() > 0
    assert not gradient[trained_part:].any()
