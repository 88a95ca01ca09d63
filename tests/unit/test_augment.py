"""Augmentation: private draws, and exactly the pixels that should change."""

from __future__ import annotations

import pytest
import torch

from strategies.common.augmentation import CUTOUT, PADDING, _cutout, _erase, augment


def images() -> torch.Tensor:
    return torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(1)) + 1.0


@pytest.mark.parametrize("recipe", ["crop-flip", "crop-flip-erase", "crop-flip-cutout"])
def test_draws_are_private_and_repeatable(recipe: str) -> None:
    before = torch.random.get_rng_state()
    first = augment(recipe, images(), torch.Generator().manual_seed(3))
    again = augment(recipe, images(), torch.Generator().manual_seed(3))
    other = augment(recipe, images(), torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (64, 3, 32, 32)
    assert torch.equal(before, torch.random.get_rng_state())


def test_none_is_the_same_object() -> None:
    batch = images()
    assert augment("none", batch, torch.Generator()) is batch


def test_crop_and_flip_move_pixels_and_change_none() -> None:
    """Each result is a window of the padded image or its mirror image, found by search."""
    batch = images()[:8]
    result = augment("crop-flip", batch, torch.Generator().manual_seed(0))
    for source, cut in zip(batch, result, strict=True):
        padded = torch.nn.functional.pad(source, (PADDING,) * 4)
        windows = [
            padded[:, r : r + 32, c : c + 32]
            for r in range(2 * PADDING + 1)
            for c in range(2 * PADDING + 1)
        ]
        assert any(torch.equal(cut, w) or torch.equal(cut, w.flip(-1)) for w in windows)


def test_erase_and_cutout_blank_a_rectangle() -> None:
    batch = torch.ones(64, 3, 32, 32)
    erased = _erase(batch, torch.Generator().manual_seed(0)) == 0
    share = erased[:, 0].float().mean(dim=(1, 2))
    assert 0.3 < (share > 0).float().mean() < 0.7
    assert share.max() <= 0.2 * 1.2
    for image in erased[share > 0][:, 0]:
        rows, columns = image.any(dim=1).sum(), image.any(dim=0).sum()
        assert image.sum() == rows * columns
    blank = (_cutout(batch, torch.Generator().manual_seed(0)) == 0)[:, 0].sum(dim=(1, 2))
    assert blank.max() <= CUTOUT * CUTOUT
    assert blank.min() >= (CUTOUT // 2) ** 2
