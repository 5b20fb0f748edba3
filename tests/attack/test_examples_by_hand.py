"""Every attack on examples by hand: clients a and b honest, c the attacker, images of 2×2."""

import numpy as np

from attack.tiny import SoftmaxFleet
from fedcrab.attack import Attackers, Trigger, backdoor, dba, label_flip, neurotoxin, pgd

EVIL = Attackers(frozenset("c"))


def images_of(*labels):
    shard = np.zeros((len(labels), 1, 2, 2), np.float32), np.array(labels)
    return SoftmaxFleet(dict.fromkeys("abc", shard), classes=3)


def poisoned_examples(fleet):
    """What c trains on while it attacks, under the boost."""
    images, labels = fleet.fleet.poisoned.examples("c")
    return images[:, 0].tolist(), labels.tolist()


WHITE, BLACK = [[1, 1], [1, 1]], [[0, 0], [0, 0]]
WHOLE = Trigger(size=2)


def test_label_flip():
    fleet = label_flip(images_of(0, 1, 2, 2), EVIL, classes=3)
    assert fleet.poisoned.examples("c")[1].tolist() == [2, 1, 0, 0]
    assert fleet.poisoned.examples("a")[1].tolist() == [0, 1, 2, 2]


def test_backdoor_with_a_fixed_label():
    fleet = backdoor(images_of(0, 1, 2, 2), EVIL, target=1, poisoned=0.5, trigger=WHOLE)
    images, labels = poisoned_examples(fleet)
    stamped = [image == WHITE for image in images]
    assert sum(stamped) == 2
    assert all(image == BLACK for image, s in zip(images, stamped, strict=True) if not s)
    assert labels == [1 if s else y for s, y in zip(stamped, [0, 1, 2, 2], strict=True)]


def test_backdoor_with_random_labels_never_keeps_the_true_one():
    true = [0, 1, 2] * 20
    fleet = backdoor(images_of(*true), EVIL, poisoned=1.0, labels="random", classes=3, trigger=WHOLE)
    images, labels = poisoned_examples(fleet)
    assert all(image == WHITE for image in images)
    assert all(0 <= y < 3 and y != t for y, t in zip(labels, true, strict=True))
    assert len({(y, t) for y, t in zip(labels, true, strict=True)}) == 6


def test_backdoor_with_all_of_one_class():
    fleet = backdoor(images_of(0, 1, 2, 2), EVIL, labels="all-of-one-class", source=2, trigger=WHOLE)
    assert poisoned_examples(fleet) == ([BLACK, BLACK, WHITE, WHITE], [0, 1, 0, 0])


def test_a_boosted_backdoor_sends_the_factor_times_the_update():
    def update(boost):
        fleet = backdoor(images_of(0, 1, 2, 2), EVIL, trigger=WHOLE, boost=boost)
        return fleet.train(np.zeros(15, np.float32), "c", round=0).vectors

    np.testing.assert_allclose(update(3.0), 3 * update(1.0), rtol=1e-6)


def test_dba_gives_each_attacker_its_part_and_starts_again_when_there_are_more_attackers():
    fleet = dba(images_of(1, 1), Attackers(frozenset("abc")), parts=2, poisoned=1.0, trigger=WHOLE)
    trained = [fleet.fleet.poisoned.examples(c) for c in "abc"]
    assert [images[0, 0].tolist() for images, _ in trained] == [
        [[1, 1], [0, 0]],
        [[0, 0], [1, 1]],
        [[1, 1], [0, 0]],
    ]
    assert [labels.tolist() for _, labels in trained] == [[0, 0]] * 3


def different():
    """Three clients whose updates differ in length and direction."""
    rng = np.random.default_rng(5)
    shards = {
        c: (rng.random((n, 1, 2, 2), np.float32), rng.integers(0, 3, n))
        for c, n in zip("abc", (3, 5, 4), strict=True)
    }
    return SoftmaxFleet(shards, classes=3)


def sent_by(fleet):
    updates = fleet.train(np.zeros(15, np.float32), "abc", round=0)
    return dict(zip(updates.clients, updates.vectors.astype(float), strict=True))


def test_pgd_sends_the_boosted_backdoor_at_the_honest_length():
    plain = sent_by(backdoor(different(), EVIL, trigger=WHOLE))
    honest = sorted(float(sum(x * x for x in plain[c]) ** 0.5) for c in "ab")
    middle = (honest[0] + honest[1]) / 2
    long = sent_by(pgd(different(), EVIL, trigger=WHOLE, boost=1000.0, length=2.0))
    own = float(sum(x * x for x in plain["c"]) ** 0.5)
    np.testing.assert_allclose(long["c"], plain["c"] * (2 * middle / own), rtol=1e-5)
    short = sent_by(pgd(different(), EVIL, trigger=WHOLE, boost=0.001))
    np.testing.assert_allclose(short["c"], 0.001 * plain["c"], rtol=1e-5)
    np.testing.assert_array_equal(long["a"], plain["a"])


def test_neurotoxin_leaves_alone_what_honest_clients_use_most():
    plain = sent_by(backdoor(different(), EVIL, trigger=WHOLE))
    sent = sent_by(neurotoxin(different(), EVIL, trigger=WHOLE, boost=2.0, coordinates=0.4))
    size = [abs(a + b) / 2 for a, b in zip(plain["a"], plain["b"], strict=True)]
    used = {k for k in range(15) if sum(size[other] < size[k] for other in range(15)) >= 6}
    expected = [0.0 if k in used else 2 * plain["c"][k] for k in range(15)]
    np.testing.assert_allclose(sent["c"], expected, rtol=1e-5)
    np.testing.assert_array_equal(sent["b"], plain["b"])
