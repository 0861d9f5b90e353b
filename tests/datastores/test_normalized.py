"""Normalised images from workers: the bits that the trainer's device would make, in the layout of all images."""

import numpy as np
import pytest
import torch
from pictures import MemorySource, encode, photo
from torch import nn

from headrace.augment import Draw, ImageAugmenter, Normalize
from headrace.datastores import AugmentedImageDatastore, Loader, normalize
from headrace.errors import ConfigError, ShapeError
from headrace.train import TrainConfig, fit, normalized_images, weights_sha256

IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
FILES = [encode(photo(40 + number, 50, number)) for number in range(24)]


def images(**settings) -> AugmentedImageDatastore:
    return AugmentedImageDatastore((20, 24), MemorySource(FILES), augment=ImageAugmenter(x_reflection=True), **settings)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_make_the_bits_that_the_device_would(workers) -> None:
    with (
        Loader(images(), 8, seed=3) as plain,
        Loader(normalize(images(), IMAGENET), 8, seed=3, workers=workers) as ready,
    ):
        for bytes_, floats in zip(plain, ready, strict=True):
            assert floats.images.dtype == torch.float32
            assert floats.images.is_contiguous(memory_format=torch.channels_last)
            expected, labels = normalized_images(IMAGENET)(bytes_)
            assert torch.equal(floats.images, expected)
            assert torch.equal(floats.labels, labels)


def test_training_is_the_same_on_either_side() -> None:
    def digest(data, prepare=None) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(20 * 24 * 3, 7))
        config = TrainConfig(max_epochs=1, batch_size=8, progress="none")
        return weights_sha256(
            fit(model, data, nn.functional.cross_entropy, torch.optim.AdamW, config, prepare=prepare).model
        )

    assert digest(normalize(images(), IMAGENET)) == digest(images(), normalized_images(IMAGENET)) != digest(images())


def test_a_sample_is_a_row_and_other_fields_stay() -> None:
    source = [{"image": photo(8, 9), "clean": photo(8, 9, 1), "mask": np.ones((8, 9), np.uint8), "name": "a"}] * 2
    data = normalize(source, IMAGENET, fields=["image", "clean"])
    sample = data[1]
    assert [field.dtype for field in data.schema().fields] == ["float32", "float32", "uint8"]
    assert sample["name"] == "a"
    assert sample["mask"].dtype == np.uint8
    with Loader(data, 2, shuffle="never") as loader:
        batch = next(iter(loader))
    for name in ("image", "clean"):
        assert np.array_equal(batch[name][1].permute(1, 2, 0).numpy(), sample[name])
    assert source[0]["image"].dtype == np.uint8
    random = normalize(images(), IMAGENET)
    draws = [random.sample(3, Draw(1, epoch))["image"].tobytes() for epoch in range(8)]
    assert len(set(draws)) == 2
    assert np.array_equal(random[3]["image"], random.sample(3, Draw())["image"])


def test_the_fingerprint_counts_everything() -> None:
    variants = [
        normalize(images(), IMAGENET),
        normalize(images(mode="letterbox"), IMAGENET),
        normalize(images(), Normalize(mean=0, std=1)),
        images(),
    ]
    assert len({data.fingerprint for data in variants}) == 4
    assert normalize(images(), IMAGENET).fingerprint == variants[0].fingerprint


def test_what_cannot_be_normalised_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"normalization must be Normalize\(.*\), got 'imagenet'"):
        normalize(images(), "imagenet")
    with pytest.raises(ConfigError, match="fields must be a list of field names"):
        normalize(images(), IMAGENET, fields="image")
    for fields in (["label"], ["picture"]):
        with pytest.raises(ConfigError, match=f"field '{fields[0]}' cannot be normalised"):
            Loader(normalize(images(), IMAGENET, fields=fields), 4)
    gray = normalize(images(color="gray"), IMAGENET)
    with pytest.raises(ShapeError, match=r"field 'image' of memory/picture2: .* got uint8 \(1, 1, 20, 24\)"):
        gray[2]
    floats = normalize([{"image": np.zeros((4, 4, 3), np.float32)}], IMAGENET)
    with pytest.raises(ShapeError, match=r"field 'image' of sample 0 of list: an image must be uint8"):
        floats[0]
