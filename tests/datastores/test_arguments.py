"""Each value goes into its own argument; anywhere else it is refused, and the error names the right place."""

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from headrace.augment import (
    ColorAugmenter,
    CutMix,
    GaussianBlur,
    ImageAugmenter,
    MixUp,
    Normalize,
    RandAugment,
    RandomResizedCrop,
    TrivialAugment,
)
from headrace.augment.crop import RandomCrop
from headrace.datastores import AugmentedImageDatastore, normalize, transform
from headrace.datastores.datastore import Datastore
from headrace.errors import ConfigError

SOURCE = [{"image": np.zeros((40, 50, 3), np.uint8), "label": 0}]


class Own:
    """A user's own operation on pixels."""

    def apply(self, images: torch.Tensor, ids: Any, draw: Any) -> torch.Tensor:
        return 255 - images


def function(image: np.ndarray) -> np.ndarray:
    return image


#: A value, the places that take it, and what every other place says.
VALUES: list[tuple[Any, set[str], str]] = [
    (ImageAugmenter(x_reflection=True), {"augment"}, "ImageAugmenter belongs to AugmentedImageDatastore(..., augment="),
    (TrivialAugment(), {"policy"}, "TrivialAugment belongs to AugmentedImageDatastore(..., policy="),
    (RandAugment(), {"policy"}, "RandAugment belongs to AugmentedImageDatastore(..., policy="),
    (TrivialAugment().geometry, {"policy"}, "PolicyGeometry belongs to AugmentedImageDatastore(..., policy="),
    (RandomCrop(), {"mode"}, "RandomCrop belongs to AugmentedImageDatastore(..., mode="),
    (RandomResizedCrop(), {"mode"}, "RandomResizedCrop belongs to AugmentedImageDatastore(..., mode="),
    (ColorAugmenter(), {"photometric"}, "ColorAugmenter belongs to AugmentedImageDatastore(..., photometric="),
    (GaussianBlur(sigma=1), {"photometric"}, "GaussianBlur belongs to AugmentedImageDatastore(..., photometric="),
    (Own(), {"photometric"}, "Own belongs to AugmentedImageDatastore(..., photometric="),
    (Normalize(mean=0, std=1), {"normalize"}, "Normalize belongs to normalize(data, ...), or to fit(..., prepare="),
    (MixUp(), set(), "MixUp mixes the rows of whole batches"),
    (CutMix(), set(), "CutMix mixes the rows of whole batches"),
    (v2.ColorJitter(0.4), {"transform"}, "belong to transform(data, ...)"),
    (v2.Compose([v2.ColorJitter(0.4)]), {"transform"}, "belong to transform(data, ...)"),
    (torch.nn.Identity(), {"transform"}, "belong to transform(data, ...)"),
    (function, {"transform"}, "belong to transform(data, ...)"),
    (ImageAugmenter, set(), "this is a class: write ImageAugmenter(...)"),
    (TrivialAugment, set(), "this is a class: write TrivialAugment(...)"),
    (RandomResizedCrop, set(), "this is a class: write RandomResizedCrop(...)"),
    (ColorAugmenter, set(), "this is a class: write ColorAugmenter(...)"),
    (Normalize, set(), "this is a class: write Normalize(...)"),
    (v2.RandomCrop, set(), "this is a class: write RandomCrop(...)"),
    (3, set(), "it is nothing that changes images"),
]


def given(place: str, value: object) -> Datastore:
    if place == "normalize":
        return normalize(SOURCE, value)
    if place == "transform":
        return transform(SOURCE, value)
    if place == "several":
        return AugmentedImageDatastore((8, 8), SOURCE, photometric=[ColorAugmenter(), value])
    return AugmentedImageDatastore((8, 8), SOURCE, **{place: value})


@pytest.mark.parametrize("place", ["augment", "policy", "mode", "photometric", "several", "normalize", "transform"])
def test_every_value_has_one_place(place: str) -> None:
    for value, places, message in VALUES:
        if ("photometric" if place == "several" else place) in places:
            assert len(given(place, value)) == 1
            continue
        with pytest.raises(ConfigError) as caught:
            given(place, value)
        assert message in str(caught.value), place
        assert "must be" in str(caught.value)


@pytest.mark.parametrize("place", ["augment", "policy", "mode"])
def test_only_photometric_takes_several(place: str) -> None:
    with pytest.raises(ConfigError, match="one value is wanted, not several"):
        given(place, [RandAugment(), ImageAugmenter()])


def test_words_are_no_operations() -> None:
    with pytest.raises(ConfigError, match=r"photometric must be operations on pixels .* got 'color'"):
        given("photometric", "color")
    with pytest.raises(ConfigError, match="mode must be one of 'resize', 'letterbox'"):
        given("mode", "color")
