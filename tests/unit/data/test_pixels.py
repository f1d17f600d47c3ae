"""Pixels and inputs map to each other as the data set's own recipe says."""

import numpy as np
import pytest
import torch

from bayesieve.data.preprocessing import PixelScale, image_recipe, prepare_images


def test_pixels_undo_the_recipe_and_inputs_redo_it():
    recipe = image_recipe((3, 2, 2), [0.1, 0.2, 0.3], [0.5, 0.6, 0.7])
    raw = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3) * 10
    x = prepare_images(raw, recipe)
    scale = PixelScale.of(recipe)
    pixels = scale.pixels(x)
    torch.testing.assert_close(pixels, torch.from_numpy(raw).permute(0, 3, 1, 2).float() / 255)
    torch.testing.assert_close(scale.inputs(pixels), x)
    black = prepare_images(np.zeros_like(raw), recipe)[0, :, 0, 0]
    torch.testing.assert_close(torch.tensor(scale.black), black)


def test_the_identity_changes_no_bit():
    x = torch.rand(2, 1, 2, 2)
    assert PixelScale().pixels(x) is x
    assert PixelScale().inputs(x) is x


def test_wrong_recipes_are_refused():
    with pytest.raises(ValueError, match="the recipe must be of images, got 'table'"):
        PixelScale.of({"kind": "table"})
    with pytest.raises(ValueError, match="as many means as stds"):
        PixelScale((0.0, 1.0), (1.0,))
    with pytest.raises(ValueError, match="std must be > 0"):
        PixelScale((0.0,), (0.0,))
