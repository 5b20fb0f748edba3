"""What was planted: the audit of a model."""

import numpy as np
import pytest
import torch
from torch import nn

from audit.conftest import Training
from fedcrab import ConfigError
from fedcrab.audit import Inversion, invert
from fedcrab.audit.trigger_inversion import ALARM


def test_a_planted_trigger_is_found_with_its_class_and_place(planted: Training, found: Inversion) -> None:
    assert found.planted
    assert found.label == 0
    assert found.ratio < ALARM
    assert found.confidence > 0.9
    assert found.mask[-2:, -2:].sum() >= 0.5 * found.mask.sum()
    others = planted.y != 0
    hits = planted.flat.predict(planted.history.final_model(), found.stamp(planted.x[others])) == 0
    assert hits.mean() >= 0.8
    assert hits.mean() == pytest.approx(found.success[0])


def test_a_clean_model_is_not_flagged(clean: Training) -> None:
    found = clean.inverted()
    assert not found.planted
    assert found.confidence == 0
    assert found.ratio > ALARM


def test_all_classes_at_once_are_each_class_alone(planted: Training) -> None:
    """Classes do not see each other: each gives what it gives when inverted by itself."""
    classify = planted.flat.at(planted.history.final_model())
    few = {"classes": 10, "steps": 40, "batch": 8}
    every = invert(classify, planted.x, planted.y, **few)
    for k in (0, 7):
        mask, pattern = naive(classify, planted.x, planted.y, k, steps=40, batch=8)
        np.testing.assert_allclose(every.masks[k], mask, atol=2e-4)
        np.testing.assert_allclose(every.patterns[k], pattern, atol=2e-4)


def naive(classify, x, y, k, *, steps, batch):
    """Neural Cleanse for one class, written out."""
    from fedcrab.seeds import rng_for

    rng, others = rng_for(0, "trigger inversion", k), x[y != k]
    start = torch.tensor(rng.normal(scale=0.1, size=(2, 8, 8)), dtype=torch.float32)
    free_mask = (start[:1] - 1).requires_grad_()
    free_pattern = start[1:].clone().requires_grad_()
    adam = torch.optim.Adam([free_mask, free_pattern], lr=0.2, betas=(0.5, 0.9))
    price, running, best = 0.01, 0.0, (64.0, np.ones((8, 8)), np.full((1, 8, 8), 0.5))
    for _ in range(steps):
        some = torch.tensor(others[rng.choice(len(others), batch)])
        mask = torch.sigmoid(2 * free_mask)
        size = float(mask.detach().sum())
        pattern = float(x.min()) + float(x.max() - x.min()) * torch.sigmoid(2 * free_pattern)
        logits = classify((1 - mask) * some + mask * pattern)
        wanted = torch.full((batch,), k)
        adam.zero_grad()
        (nn.functional.cross_entropy(logits, wanted) + price * mask.sum()).backward()
        adam.step()
        hits = float((logits.argmax(1) == k).float().mean())
        running = 0.7 * running + 0.3 * hits
        price = price * 1.15 if hits >= 0.95 else price / 1.25
        if running >= 0.95 and size < best[0]:
            best = (size, mask.detach().numpy()[0], pattern.detach().numpy())
    return best[1], best[2]


def test_the_same_twice_and_torch_is_left_alone(planted: Training) -> None:
    classify = planted.flat.at(planted.history.final_model())
    state = torch.random.get_rng_state()
    first, again = (
        invert(classify, planted.x, planted.y, classes=10, steps=20, batch=4, seed=5) for _ in range(2)
    )
    np.testing.assert_array_equal(first.masks, again.masks)
    assert torch.equal(state, torch.random.get_rng_state())


def test_flat_images_with_their_shape_told(planted: Training) -> None:
    classify = planted.flat.at(planted.history.final_model())
    x = planted.x.reshape(len(planted.x), -1)
    flat = invert(classify, x, planted.y, classes=10, image=(1, 8, 8), steps=20)
    whole = invert(classify, planted.x, planted.y, classes=10, steps=20)
    np.testing.assert_array_equal(flat.masks, whole.masks)
    assert flat.stamp(x).shape == x.shape


def test_what_is_no_image_is_refused(planted: Training) -> None:
    classify = planted.flat.at(planted.history.final_model())
    x, y = planted.x, planted.y
    with pytest.raises(ConfigError, match=r"are not images .* give examples"):
        invert(classify, x.reshape(len(x), -1), y, classes=10)
    with pytest.raises(ConfigError, match="two or more other classes, got 2 classes"):
        invert(classify, x, y % 2, classes=2)
    with pytest.raises(ConfigError, match="finite examples with one label each"):
        invert(classify, np.full_like(x, np.nan), y, classes=10)
    with pytest.raises(ConfigError, match="the model has 10 classes, not 11"):
        invert(classify, x, y, classes=11)
    with pytest.raises(ConfigError, match="steps and batch must be 1 or more"):
        invert(classify, x, y, classes=10, steps=0)


def test_colours_and_a_module_of_ones_own() -> None:
    """A module that looks at one pixel alone: the mask is that pixel."""

    class Pixel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            base = 3 * x[:, 0, :2, :5].flatten(1).reshape(-1, 10)[:, :4]
            seen = 20 * (x[:, 2, 6, 6] - 0.6)
            return torch.cat([base, seen[:, None]], 1)

    rng = np.random.default_rng(0)
    x = rng.uniform(0, 0.5, (60, 3, 8, 8)).astype(np.float32)
    x[:2, 2, 6, 6] = 1.0
    y = np.arange(60) % 4
    found = invert(Pixel(), x, y, classes=5)
    assert found.label == 4
    assert np.unravel_index(found.mask.argmax(), (8, 8)) == (6, 6)
    assert found.pattern[2, 6, 6] > 0.7


def test_the_table_is_plain(found: Inversion) -> None:
    import json

    table = json.loads(json.dumps(found.to_table(), allow_nan=False))
    assert (table["planted"], table["class"]) == (True, 0)
    assert np.shape(table["mask"]) == (8, 8)
    assert len(table["sizes"]) == 10
    assert "no other kind" in table["notes"][0]
