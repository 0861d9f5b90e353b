"""Policies in a datastore: their movements join the one matrix, the rest is the same in workers and on a batch."""

import numpy as np
import pytest
import torch
from pictures import MemorySource, encode, photo

from headrace.augment import Draw, ImageAugmenter, RandAugment, RandomErasing, RandomResizedCrop, TrivialAugment
from headrace.augment.placement import Placement
from headrace.augment.random import Purpose
from headrace.augment.resample import resample
from headrace.datastores import AugmentedImageDatastore, Loader
from headrace.datastores.clock import Clock
from headrace.errors import ConfigError

DRAW = Draw(seed=2, epoch=1)
SIZE = (40, 48)
COUNT = 40
FILES = [encode(photo(70 + number, 90, number)) for number in range(COUNT)]
FLIPS = ImageAugmenter(x_reflection=True, fill_value=99)
IDS = np.arange(COUNT)
POLICIES = [TrivialAugment(), RandAugment(num_ops=2, magnitude=14)]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)


def data(**settings) -> AugmentedImageDatastore:
    return AugmentedImageDatastore(SIZE, MemorySource(FILES), mode="random_resized_crop", augment=FLIPS, **settings)


def images_of(datastore) -> torch.Tensor:
    rows = {field.name: np.zeros((COUNT, *field.shape), field.dtype) for field in datastore.schema().fields}
    datastore.fill(IDS, DRAW, rows, Clock())
    return torch.from_numpy(rows["image"]).permute(0, 3, 1, 2)


@each_policy
def test_the_whole_way_is_one_matrix_and_then_the_values_change(policy) -> None:
    crop, source = RandomResizedCrop(), MemorySource(FILES)
    numbers = DRAW.uniforms(IDS, Purpose.CROP, crop.num_draws).tolist()
    mirrors = FLIPS.sample_mirrors(IDS, DRAW)
    movements = policy.sample_movements(IDS, DRAW, SIZE)
    assert 5 < sum(movement is None for movement in movements) < 36
    moved = images_of(data(policy=policy.geometry))
    for row, movement in enumerate(movements):
        image = source[row]["image"]
        plain = Placement(image.shape[:2], SIZE, crop.box(image.shape[:2], SIZE, numbers[row]), mirrors[row])
        expected = plain.apply(image, 99) if movement is None else resample(image, movement @ plain.matrix, SIZE, 99)
        assert np.array_equal(moved[row].permute(1, 2, 0).numpy(), expected)
    assert torch.equal(images_of(data(policy=policy)), policy.apply(moved, IDS, DRAW))


@each_policy
def test_workers_and_a_batch_give_the_same_bits(policy) -> None:
    erasing = RandomErasing(probability=1)
    found = {}
    for workers in (0, 2):
        with Loader(data(policy=policy, photometric=erasing), 16, seed=5, workers=workers) as loader:
            found[workers] = [batch.images.clone() for batch in loader]
    with Loader(data(policy=policy.geometry), 16, seed=5) as loader:
        for step, batch in enumerate(loader):
            draw = Draw(5, batch.epoch)
            images = erasing.apply(policy.apply(batch.images, batch.ids, draw), batch.ids, draw)
            assert torch.equal(images, found[0][step])
            assert torch.equal(images, found[2][step])
    one = data(policy=policy, photometric=erasing)
    assert np.array_equal(one.sample(7, DRAW)["image"], images_of(one)[7].permute(1, 2, 0).numpy())


def test_label_maps_and_points_go_the_same_way() -> None:
    policy = TrivialAugment()
    masks = [photo(70, 90, number)[..., 0] // 64 for number in range(COUNT)]
    points = np.array([[10.0, 20.0], [45.0, 35.0]], np.float32)
    source = [{"image": mask, "mask": mask, "points": points} for mask in masks]
    joint = AugmentedImageDatastore(SIZE, source, policy=policy, masks=["mask"], keypoints=["points"])
    seen = 0
    for index, movement in enumerate(policy.sample_movements(IDS, DRAW, SIZE)):
        sample = joint.sample(index, DRAW)
        scaled = points * [48 / 90, 40 / 70]
        if movement is None:
            assert np.allclose(sample["points"], scaled, atol=1e-4)
            continue
        seen += 1
        homogeneous = np.concatenate((scaled - 0.5, np.ones((2, 1))), axis=1) @ movement.T
        assert np.allclose(sample["points"], homogeneous[:, :2] + 0.5, atol=1e-4)
        whole = Placement((70, 90), SIZE, (0, 0, 90, 70), (False, False), movement)
        expected = whole.apply(masks[index][..., np.newaxis], 255, interpolation="nearest")[..., 0]
        assert np.array_equal(sample["mask"], expected)
    assert seen > 5


def test_policies_count_in_the_fingerprint() -> None:
    settings = [None, *POLICIES, RandAugment(), TrivialAugment().geometry]
    assert len({data(policy=policy).fingerprint for policy in settings}) == 5
    assert data(policy=TrivialAugment()).fingerprint == data(policy=TrivialAugment()).fingerprint


@pytest.mark.parametrize("wrong", [TrivialAugment, "trivial", ImageAugmenter(), RandomErasing()])
def test_what_is_no_policy_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=r"policy must be TrivialAugment\(\)"):
        data(policy=wrong)
