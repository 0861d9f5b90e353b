"""Label maps, second images, boxes and key points go exactly where their image goes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pictures import MemorySource, encode, photo

from headrace.augment import ColorAugmenter, Draw, ImageAugmenter, RandAugment, RandomResizedCrop, apply_all
from headrace.augment.placement import Placement
from headrace.datastores import AugmentedImageDatastore, Loader
from headrace.datastores.clock import Clock
from headrace.datastores.schema import Field
from headrace.errors import ConfigError, FieldError, ShapeError

SIZE, OUTPUT = (60, 80), (48, 56)
PHOTO = photo(*SIZE)
JOINT = {"masks": ["mask"], "images": ["target"], "boxes": ["boxes"], "keypoints": ["points"]}
MOVING = ImageAugmenter(
    x_reflection=True, y_reflection=True, rotation=(-180, 180), scale=(0.6, 1.5), x_shear=(-20, 20),
    x_translation=(-9, 9), y_translation=(-9, 9),
)  # fmt: skip
FLIPPING = ImageAugmenter(x_reflection=True, y_reflection=True, x_translation=3)
MODES = ["resize", "letterbox", "center_crop", "random_crop", "random_resized_crop"]


def scene(left=20, top=15, width=24, height=18, dtype=np.float32):
    """A picture with one marked rectangle: as label 1, as white, as a box and as the point in its middle."""
    mask = np.zeros(SIZE, np.uint8)
    mask[top : top + height, left : left + width] = 1
    return {
        "image": PHOTO,
        "mask": mask,
        "target": mask * np.uint8(255),
        "boxes": np.array([[left, top, left + width, top + height]], dtype),
        "points": np.array([[left + width / 2, top + height / 2]], dtype),
        "label": 5,
    }


def joint(samples, mode="resize", augment=None, output=OUTPUT, **settings):
    return AugmentedImageDatastore(output, samples, mode=mode, augment=augment, **{**JOINT, **settings})


@given(st.sampled_from(MODES), st.sampled_from([MOVING, FLIPPING, None]), st.integers(0, 10**6))
def test_the_mask_goes_where_the_same_mask_goes_as_an_image(mode, augment, epoch) -> None:
    sample = joint([scene()], mode, augment).sample(0, Draw(1, epoch))
    mask, white = sample["mask"], sample["target"][..., 0]
    assert mask.shape == OUTPUT
    assert (mask[white == 255] == 1).all()
    assert np.isin(mask[white == 0], (0, 255)).all()
    assert ((mask == 1) == (white > 127))[(white == 0) | (white == 255)].all()
    unsure = (white != 0) & (white != 255)
    assert unsure.mean() < 0.25, "only along edges"


@given(
    st.sampled_from(MODES),
    st.sampled_from([MOVING, FLIPPING, None]),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 300), min_size=1, max_size=5),
    st.sampled_from([np.uint16, np.int32, np.int64]),
)
def test_labels_are_never_invented(mode, augment, epoch, values, dtype) -> None:
    mask = np.random.default_rng(0).choice(np.array(values, dtype), SIZE)
    data = AugmentedImageDatastore(
        OUTPUT, [{"image": PHOTO, "m": mask}], mode=mode, augment=augment, masks=["m"], mask_fill=301
    )
    found = data.sample(0, Draw(2, epoch))["m"]
    assert found.dtype == dtype
    assert set(np.unique(found)) <= {*values, 301}


@given(st.sampled_from(MODES), st.sampled_from([MOVING, FLIPPING, None]), st.integers(0, 10**6))
def test_boxes_and_points_go_where_the_marked_pixels_go(mode, augment, epoch) -> None:
    sample = joint([scene()], mode, augment).sample(0, Draw(3, epoch))
    y, x = np.nonzero(sample["mask"] == 1)
    left, top, right, bottom = sample["boxes"][0].tolist()
    assert 0 <= left <= right <= OUTPUT[1]
    assert 0 <= top <= bottom <= OUTPUT[0]
    assert (x + 0.5 >= left - 1e-3).all()
    assert (x + 0.5 <= right + 1e-3).all()
    assert (y + 0.5 >= top - 1e-3).all()
    assert (y + 0.5 <= bottom + 1e-3).all()
    if left > 0 and top > 0 and right < OUTPUT[1] and bottom < OUTPUT[0]:  # all of it is seen, so its middle is known
        assert np.allclose(sample["points"][0], (x.mean() + 0.5, y.mean() + 0.5), atol=0.7)
        gaps = (x.min() - left, right - x.max() - 1, y.min() - top, bottom - y.max() - 1)
        assert max(gaps) < 2 or mode == "random_resized_crop", "the box ends where the marked pixels end"


@given(st.integers(0, 10**6), st.sampled_from(["random_crop", "center_crop"]))
def test_where_pixels_are_only_copied_boxes_are_exact(epoch, mode) -> None:
    sample = joint([scene()], mode, FLIPPING).sample(0, Draw(4, epoch))
    y, x = np.nonzero(sample["mask"] == 1)
    assert sample["boxes"][0].tolist() == [x.min(), y.min(), x.max() + 1, y.max() + 1]
    assert np.array_equal(sample["target"][..., 0] == 255, sample["mask"] == 1)


def test_what_leaves_the_picture() -> None:
    away = joint([scene()], augment=ImageAugmenter(x_translation=500), mask_fill=9)[0]
    assert (away["mask"] == 9).all()
    assert (away["target"] == 0).all()
    assert away["boxes"].tolist() == [[56, 12, 56, pytest.approx(26.4)]], "no area, on the border"
    assert away["points"][0, 0] > 56, "points are not cut"


def test_letterbox_marks_its_bars_as_outside() -> None:
    sample = joint([scene()], "letterbox", ImageAugmenter(fill_value=77), (80, 80))[0]
    assert (sample["mask"][[0, 9, 70, 79]] == 255).all()
    assert (sample["image"][[0, 9, 70, 79]] == 77).all()
    assert np.array_equal(sample["image"][10:70], PHOTO)
    assert sample["boxes"].tolist() == [[20, 25, 44, 43]]


def test_rows_hold_what_samples_hold_and_all_of_it_arrives_in_batches() -> None:
    scenes = [scene(left, 10) for left in (0, 10, 30, 50)]
    data = joint(scenes, "random_resized_crop", MOVING)
    assert data.schema().fields == (
        Field("image", (48, 56, 3), "uint8", True),
        Field("target", (48, 56, 3), "uint8", True),
        Field("mask", (48, 56), "uint8"),
        Field("boxes", (1, 4), "float32"),
        Field("points", (1, 2), "float32"),
        Field("label", (), "int64"),
    )
    draw = Draw(7, 2)
    rows = {field.name: np.zeros((3, *field.shape), field.dtype) for field in data.schema().fields}
    data.fill(np.array([2, 0, 3]), draw, rows, Clock())
    for row, index in enumerate([2, 0, 3]):
        for name, value in data.sample(index, draw).items():
            assert np.array_equal(rows[name][row], value), name
    with Loader(data, 4, seed=7, workers=1) as loader:
        (batch,) = loader
    for row, index in enumerate(batch.ids.tolist()):
        sample = data.sample(index, Draw(7, 0))
        assert np.array_equal(batch["mask"][row].numpy(), sample["mask"])
        assert np.array_equal(batch["target"][row].permute(1, 2, 0).numpy(), sample["target"])
        assert np.array_equal(batch["boxes"][row].numpy(), sample["boxes"])


def test_the_image_does_not_depend_on_what_goes_with_it() -> None:
    for mode in [*MODES, RandomResizedCrop((0.5, 1))]:
        alone = AugmentedImageDatastore(OUTPUT, [{"image": PHOTO}], mode=mode, augment=MOVING)
        for epoch in range(5):
            together = joint([scene()], mode, MOVING).sample(0, Draw(0, epoch))["image"]
            assert np.array_equal(together, alone.sample(0, Draw(0, epoch))["image"])


def test_padding_empty_fields_and_shapes_are_kept() -> None:
    sample = scene(dtype=np.float64)
    sample["boxes"] = np.vstack((sample["boxes"], np.full((2, 4), np.nan)))
    sample["points"] = np.zeros((0, 2))
    sample["mask"] = np.dstack((sample["mask"], sample["mask"]))
    given = {name: np.copy(value) for name, value in sample.items()}
    found = joint([sample], augment=MOVING)[0]
    assert np.isnan(found["boxes"]).tolist() == [[False] * 4, [True] * 4, [True] * 4]
    assert (found["boxes"].dtype, found["points"].shape, found["mask"].shape) == (np.float64, (0, 2), (*OUTPUT, 2))
    for name, value in given.items():
        assert np.array_equal(sample[name], value, equal_nan=name == "boxes"), "the source's arrays are left alone"


def test_settings_are_part_of_the_fingerprint() -> None:
    settings = [{}, {"mask_fill": 0}, {"masks": []}, {"boxes": [], "keypoints": []}]
    assert len({joint([scene()], **setting).fingerprint for setting in settings}) == 4
    assert joint([scene()]).fingerprint == joint([scene()]).fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"masks": "mask"}, "masks must be a list of field names, such as masks="),
        ({"masks": [3]}, "masks must be a list of field names"),
        ({"images": ["image"]}, "'image' is named twice, or is no field of this kind"),
        ({"masks": ["mask", "mask"]}, "'mask' is named twice"),
        ({"boxes": ["points"]}, "'points' is named twice"),
        ({"mask_fill": 2.5}, "mask_fill must be a whole number, got 2.5"),
        ({"mask_fill": True}, "mask_fill must be a whole number"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        joint([scene()], **settings)


def test_encoded_images_have_no_such_fields() -> None:
    with pytest.raises(ConfigError, match=r"MemorySource gives images and labels, and no fields \['mask'\]"):
        AugmentedImageDatastore(OUTPUT, MemorySource([encode(PHOTO)]), masks=["mask"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mask", np.zeros((5, 5), np.uint8), r"'mask' is 5 x 5 pixels .* but the image is 60 x 80"),
        ("target", np.zeros((5, 5), np.uint8), r"'target' is 5 x 5 pixels .* but the image is 60 x 80"),
        ("mask", np.zeros(SIZE, np.float32), r"'mask' is float32 \(60, 80\): a mask must be whole numbers"),
        ("mask", np.zeros(5, np.uint8), r"'mask' is uint8 \(5,\): a mask must be"),
        ("mask", np.zeros(SIZE, np.bool_), r"'mask': fill 255 does not fit into bool"),
        ("target", np.zeros(SIZE, np.float32), r"the target of sample 0 of list is float32"),
        ("boxes", np.zeros((1, 4), np.int64), r"'boxes' is int64 \(1, 4\): boxes must be float \(n, 4\)"),
        ("boxes", np.zeros((1, 5)), r"boxes must be float \(n, 4\)"),
        ("points", np.zeros((3, 3)), r"points must be float \(n, 2\)"),
    ],
)
def test_fields_that_do_not_fit_are_named(name, value, message) -> None:
    with pytest.raises(ShapeError, match=f"sample 0 of list.*{message}" if name != "target" else message):
        joint([{**scene(), name: value}])[0]


@pytest.mark.parametrize("name", ["mask", "target", "boxes", "points"])
def test_a_field_that_is_missing_is_named(name) -> None:
    sample = scene()
    del sample[name]
    with pytest.raises(FieldError, match=f'sample 0 of list has no field "{name}"'):
        joint([sample])[0]


def test_samples_of_a_batch_must_have_equally_many_boxes() -> None:
    data = joint([scene(), {**scene(), "boxes": np.zeros((3, 4), np.float32)}])
    rows = {field.name: np.zeros((2, *field.shape), field.dtype) for field in data.schema().fields}
    with pytest.raises(ShapeError, match=r"field 'boxes' of sample 1 of list is float32 \(3, 4\), but the first"):
        data.fill(np.arange(2), Draw(), rows, Clock())


def test_values_change_in_the_first_image_alone_unless_asked_for_the_second() -> None:
    color, draw = ColorAugmenter(brightness=(0.2, 0.8)), Draw(3, 1)
    samples = [{"image": PHOTO, "second": PHOTO}] * 3
    still = AugmentedImageDatastore(OUTPUT, samples, images=["second"], augment=MOVING)
    data = AugmentedImageDatastore(OUTPUT, samples, images=["second"], augment=MOVING, photometric=color)
    policy = AugmentedImageDatastore(OUTPUT, samples, images=["second"], policy=RandAugment(magnitude=30))
    ids = np.arange(3)
    for index in range(3):
        sample = data.sample(index, draw)
        assert np.array_equal(sample["second"], still.sample(index, draw)["second"])
        assert not np.array_equal(sample["image"], sample["second"])
    batch = next(iter(Loader(data, 3, seed=3, shuffle="never")))
    first = Draw(3, batch.epoch)
    assert torch.equal(apply_all([color], batch["second"], batch.ids, first), batch.images)
    moved = RandAugment(magnitude=30).geometry.sample_movements(ids, draw, OUTPUT)
    for index in ids.tolist():
        plain = Placement(SIZE, OUTPUT, (0, 0, *SIZE[::-1]), (False, False), moved[index]).apply(PHOTO)
        assert np.array_equal(policy.sample(index, draw)["second"], plain)
