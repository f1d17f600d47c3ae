"""Augmentations against slow versions that handle one image at a time."""

import pytest
import torch

from bayesieve.data.augment import (
    Augment,
    random_erasing,
    random_flip,
    random_rotation,
    random_shift,
    rotate,
)
from problems import seeded


def images(n=64, channels=2, height=6, width=5):
    return 1 + torch.rand(n, channels, height, width, generator=seeded(9))


def shifted(image, down, right):
    out = torch.zeros_like(image)
    height, width = image.shape[-2:]
    for i in range(height):
        for j in range(width):
            if 0 <= i - down < height and 0 <= j - right < width:
                out[:, i, j] = image[:, i - down, j - right]
    return out


def test_each_image_is_shifted_by_its_own_offset_within_bounds():
    x = images()
    moved = random_shift(x, 2, seeded(0))
    seen = set()
    for image, result in zip(x, moved, strict=True):
        offsets = [(i, j) for i in range(-2, 3) for j in range(-2, 3)]
        found = [o for o in offsets if torch.equal(shifted(image, *o), result)]
        assert len(found) == 1
        seen.add(found[0])
    assert len(seen) > 15  # of 25


def test_what_enters_a_shifted_image_is_the_fill():
    x = images(200)
    moved = Augment(shift=3, fill=-7.0)(x, seeded(0))
    assert set(moved[moved < 1].tolist()) == {-7.0}


def test_about_half_of_the_images_are_mirrored():
    x = images(400)
    result = random_flip(x, seeded(0))
    same = (result == x).flatten(1).all(1)
    assert torch.equal(result[~same], x[~same].flip(-1))
    assert 160 < int(same.sum()) < 240


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_right_angles_are_exact_on_squares(turns):
    x = images(4, 2, 6, 6)
    expected = torch.rot90(x, turns, (2, 3))
    torch.testing.assert_close(rotate(x, 90.0 * turns), expected, rtol=0, atol=1e-4)


def test_half_a_turn_is_exact_on_rectangles():
    x = images()
    torch.testing.assert_close(rotate(x, 180.0), x.flip(2, 3), rtol=0, atol=1e-4)


def test_a_dot_moves_along_a_circle_on_a_rectangle():
    x = torch.zeros(1, 1, 21, 41)
    x[0, 0, 10, 28] = 1  # 8 to the right of the centre
    where = rotate(x, 90.0)[0, 0].nonzero()
    assert where.tolist() == [[2, 20]] or rotate(x, 90.0)[0, 0, 2, 20] > 0.99


def test_angles_may_differ_and_stay_in_their_range():
    x = images(3, 1, 8, 8)
    angles = torch.tensor([0.0, 90.0, 180.0])
    result = rotate(x, angles)
    for i, angle in enumerate(angles.tolist()):
        torch.testing.assert_close(result[i], rotate(x[i : i + 1], angle)[0])
    assert torch.equal(random_rotation(x, 0.0, seeded(0)), rotate(x, 0.0))


def test_erased_parts_are_rectangles_of_the_stated_size():
    x = images(500, 1, 20, 20)
    result = random_erasing(x, 0.2, seeded(0))
    gone = result[:, 0] == 0
    hit = gone.flatten(1).any(1)
    assert 64 < int(hit.sum()) < 136  # 100, within four standard errors
    assert torch.equal(result[~hit], x[~hit])
    for mask in gone[hit]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns)
        height, width = int(rows.sum()), int(columns.sum())
        assert 4 <= height * width <= 0.46 * 400  # 0.02 to 0.4, sides rounded
        assert torch.equal(rows.nonzero().diff(dim=0), torch.ones(height - 1, 1, dtype=int))


def test_equal_seeds_give_equal_images_and_the_global_state_is_left_alone():
    augment = Augment(shift=1, flip=True, rotation=15, erase=0.5)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    x = images()
    kept = x.clone()
    first, again, other = (augment(x, seeded(s)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.shape == x.shape
    assert first.dtype == x.dtype


def test_no_changes_are_the_identity():
    x = images()
    assert Augment()(x, seeded(0)) is x
    assert torch.equal(random_shift(x, 0, seeded(0)), x)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="Augment: erase must be between 0 and 1"):
        Augment(erase=2.0)
    with pytest.raises(ValueError, match=r"rotate: images must have shape \(n, channels"):
        rotate(torch.zeros(3, 3), 1.0)
