import numpy as np
import pytest

from fedcrab.attack import Trigger, stamp
from fedcrab.errors import ConfigError


def test_a_white_patch_of_four_by_four_bottom_right_in_every_channel():
    images = np.zeros((2, 3, 6, 8), np.float32)
    expected = images.copy()
    expected[:, :, 2:, 4:] = 1
    np.testing.assert_array_equal(stamp(images), expected)
    assert not images.any()


def test_flat_features_are_stamped_as_the_images_they_are():
    images = np.random.default_rng(0).random((5, 2, 7, 6)).astype(np.float32)
    trigger = Trigger(size=3, value=9.0, image=(2, 7, 6))
    flat = stamp(images.reshape(5, -1), trigger)
    assert flat.shape == (5, 84)
    np.testing.assert_array_equal(flat.reshape(images.shape), stamp(images, trigger))


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 16])
def test_the_parts_do_not_overlap_and_make_the_whole(parts):
    images = np.zeros((1, 1, 5, 5), np.float32)
    stamped = [stamp(images, part) for part in Trigger().cut(parts)]
    assert all(image.any() for image in stamped)
    np.testing.assert_array_equal(sum(stamped), stamp(images))


def test_stamping_twice_is_stamping_once():
    images = np.random.default_rng(0).random((3, 1, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(stamp(stamp(images)), stamp(images))


def test_no_images_are_no_trouble():
    assert stamp(np.zeros((0, 1, 8, 8), np.float32)).shape == (0, 1, 8, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Trigger(size=0), "size must be 1 or more, got 0"),
        (lambda: Trigger(size=2, parts=5), "4 pixels can have 1 to 4 parts, got 5"),
        (lambda: Trigger(part=2, parts=2), "part must be from 0 to 1, got 2"),
        (lambda: stamp(np.zeros((1, 64), np.float32)), r"shape \(64,\) needs image="),
        (lambda: stamp(np.zeros((1, 64), np.float32), Trigger(image=(1, 8, 9))), r"\(64,\) are not .*8, 9"),
        (lambda: stamp(np.zeros((1, 1, 3, 8), np.float32)), "size 4 does not fit images of 3×8"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
