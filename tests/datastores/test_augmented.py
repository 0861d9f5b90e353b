"""From files to rows: one size, one movement per sample, the same bits however they are asked for."""

import operator
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import MemorySource, encode, exif, photo, with_exif

from headrace.augment import (
    ColorAugmenter,
    Draw,
    ImageAugmenter,
    RandAugment,
    RandomErasing,
    RandomResizedCrop,
    apply_all,
)
from headrace.augment.geometry import about_centre, window
from headrace.augment.random import Purpose
from headrace.augment.resample import resample
from headrace.datastores import AugmentedImageDatastore, Datastore, Loader, transform
from headrace.datastores.clock import Clock, Stage
from headrace.datastores.decode import decode
from headrace.datastores.messages import Task
from headrace.datastores.schema import Field
from headrace.datastores.worker import make_rows
from headrace.errors import ConfigError, DecodeError, FieldError, ShapeError

SIZES = [(60, 80), (75, 50), (90, 90), (48, 64), (100, 70), (64, 48)]
PHOTOS = [photo(*size, number) for number, size in enumerate(SIZES)]
FILES = [encode(image, "PNG" if number % 2 else "JPEG") for number, image in enumerate(PHOTOS)]
FILES[2] = with_exif(FILES[2], exif(6))
MOVING = ImageAugmenter(x_reflection=True, rotation=(-20, 20), scale=(0.8, 1.2), x_translation=(-5, 5), fill_value=99)
COLORS = ColorAugmenter(brightness=(0.5, 1.5), contrast=(0.5, 1.5), saturation=(0.5, 1.5), hue=(-0.2, 0.2))
DRAW = Draw(seed=3, epoch=1)


class Everything(Datastore):
    """A datastore of arrays with more fields than an image."""

    def __init__(self, images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": index, "angle": np.float32(index / 2), "name": f"n{index}"}


def rows_of(data, count) -> dict[str, np.ndarray]:
    return {field.name: np.zeros((count, *field.shape), field.dtype) for field in data.schema().fields}


def filled(data, ids, draw=DRAW) -> dict[str, np.ndarray]:
    rows = rows_of(data, len(ids))
    data.fill(np.array(ids), draw, rows, Clock())
    return rows


def slow(rng: np.random.Generator) -> float:
    return rng.uniform(-5, 5)


# --- what comes out --------------------------------------------------------------------------------------------------


def test_each_row_is_decoded_moved_and_cut_by_one_matrix() -> None:
    data = AugmentedImageDatastore((32, 40), MemorySource(FILES), mode="random_resized_crop", augment=MOVING)
    rows = filled(data, range(6))
    for index in range(6):
        image = decode(FILES[index], where="")
        size = image.shape[:2]
        numbers = DRAW.uniforms(np.array([index]), Purpose.CROP, 22)[0].tolist()
        cut = window(RandomResizedCrop().box(size, (32, 40), numbers), (32, 40))
        movement = MOVING.sample_matrices(np.array([index]), DRAW)[0]
        expected = resample(image, cut @ about_centre(movement, size), (32, 40), 99)
        assert np.array_equal(rows["image"][index], expected)
    assert rows["label"].tolist() == list(range(6))


@pytest.mark.parametrize(
    "mode", ["resize", "letterbox", "center_crop", "random_crop", "random_resized_crop", RandomResizedCrop((0.5, 1))]
)
@pytest.mark.parametrize("color", ["rgb", "gray", "keep"])
@pytest.mark.parametrize("augment", [None, MOVING])
def test_samples_and_rows_are_the_same(mode, color, augment) -> None:
    for source in (MemorySource(FILES), Everything(PHOTOS)):
        data = AugmentedImageDatastore((24, 32), source, mode=mode, color=color, augment=augment)
        rows = filled(data, [4, 0, 2])
        for row, index in enumerate([4, 0, 2]):
            sample = data.sample(index, DRAW)
            assert np.array_equal(sample["image"], rows["image"][row])
            assert sample["label"] == rows["label"][row]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 1000))
def test_a_row_does_not_depend_on_its_company(ids, epoch) -> None:
    data = AugmentedImageDatastore((16, 16), MemorySource(FILES), mode="random_resized_crop", augment=MOVING)
    together = filled(data, ids, Draw(1, epoch))["image"]
    for row, index in enumerate(ids):
        assert np.array_equal(together[row], filled(data, [index], Draw(1, epoch))["image"][0])


TINY_SIZES = [(28, 28), (28, 28), (20, 28), (28, 20), (31, 33), (200, 180)]
TINY = MemorySource([encode(photo(*size, number), "JPEG") for number, size in enumerate(TINY_SIZES)])


@pytest.mark.parametrize("mode", ["resize", "letterbox", "center_crop", "random_crop", "random_resized_crop"])
@pytest.mark.parametrize("augment", [None, ImageAugmenter(x_reflection=True, y_reflection=0.3), MOVING])
@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=120), st.lists(st.integers(0, 120), max_size=3))
def test_small_images_do_not_depend_on_how_rows_are_cut_into_tasks(mode, augment, ids, cuts) -> None:
    data = AugmentedImageDatastore((18, 20), TINY, mode=mode, augment=augment)
    alone = [data.sample(index, DRAW)["image"] for index in range(6)]
    for part in np.split(np.array(ids), sorted(cuts)):
        rows = filled(data, part)
        assert rows["label"].tolist() == part.tolist()
        assert all(np.array_equal(row, alone[index]) for row, index in zip(rows["image"], part, strict=True))


@pytest.mark.parametrize("damage", ["file", "size"])
def test_a_bad_sample_among_many_small_ones_is_named_and_harms_no_other(damage) -> None:
    files = [encode(photo(28, 28, number), "JPEG") for number in range(100)]
    files[41] = files[41][:300] if damage == "file" else encode(photo(9, 28), "JPEG")
    data = AugmentedImageDatastore((18, 20), MemorySource(files), mode="random_crop")
    with pytest.raises((DecodeError, ShapeError), match="memory/picture41"):
        filled(data, range(100))
    rows = rows_of(data, 100)
    done = make_rows(data, Task(0, 0, 0, DRAW, np.arange(100)), rows, Clock(), "substitute")
    (incident,) = done.incidents
    assert (incident.sample, incident.row) == (41, 41)
    expected = [data.sample(incident.substitute if index == 41 else index, DRAW)["image"] for index in range(100)]
    assert np.array_equal(rows["image"], expected)


def test_colors_change_after_everything_else() -> None:
    settings = {"mode": "random_resized_crop", "augment": MOVING}
    plain = AugmentedImageDatastore((16, 20), MemorySource(FILES), **settings)
    colored = AugmentedImageDatastore((16, 20), MemorySource(FILES), photometric=COLORS, **settings)
    before = torch.from_numpy(filled(plain, [4, 1])["image"]).permute(0, 3, 1, 2)
    expected = COLORS.apply(before, np.array([4, 1]), DRAW).permute(0, 2, 3, 1).numpy()
    rows = filled(colored, [4, 1])
    assert np.array_equal(rows["image"], expected)
    assert rows["label"].tolist() == [4, 1]
    twice = AugmentedImageDatastore((16, 20), MemorySource(FILES), photometric=[ColorAugmenter(gamma=2), COLORS])
    darker = AugmentedImageDatastore((16, 20), MemorySource(FILES), photometric=[ColorAugmenter(gamma=2)])
    before = torch.from_numpy(filled(darker, [2])["image"]).permute(0, 3, 1, 2)
    second = COLORS.apply(before, [2], DRAW.fork(1))[0].permute(1, 2, 0).numpy()
    assert np.array_equal(filled(twice, [2])["image"][0], second)


@pytest.mark.parametrize("color", ["rgb", "gray"])
@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 1000), st.integers(1, 8))
def test_colored_rows_do_not_depend_on_the_chunk(color, ids, epoch, size) -> None:
    data = AugmentedImageDatastore((16, 17), MemorySource(FILES), mode="random_crop", color=color, photometric=COLORS)
    draw = Draw(1, epoch)
    together = filled(data, ids, draw)["image"]
    for start in range(0, len(ids), size):
        part = filled(data, ids[start : start + size], draw)["image"]
        assert np.array_equal(part, together[start : start + size])
    assert np.array_equal(data.sample(ids[-1], draw)["image"], together[-1])


def test_a_sample_in_other_colors_leaves_its_source_alone() -> None:
    image = PHOTOS[0].copy()
    image.flags.writeable = False
    data = AugmentedImageDatastore(SIZES[0], [{"image": image}], mode="center_crop", photometric=COLORS)
    assert not np.array_equal(data[0]["image"], image)
    assert np.array_equal(image, PHOTOS[0])


def test_background_workers_give_the_same_colors() -> None:
    data = AugmentedImageDatastore((24, 24), MemorySource(FILES), photometric=COLORS)
    expected = [batch.images.clone() for batch in Loader(data, batch_size=3, seed=4)]
    with Loader(data, batch_size=3, seed=4, workers=2) as loader:
        for batch, images in zip(loader, expected, strict=True):
            assert torch.equal(batch.images, images)
            again = [data.sample(i, Draw(4, batch.epoch))["image"] for i in batch.ids.tolist()]
            assert np.array_equal(batch.images.permute(0, 2, 3, 1).numpy(), again)


def test_seeds_and_epochs_change_what_is_seen_and_an_item_is_the_first_of_them() -> None:
    data = AugmentedImageDatastore((16, 16), MemorySource(FILES), mode="random_resized_crop")
    seen = [data.sample(1, draw)["image"].tobytes() for draw in (Draw(0, 0), Draw(0, 1), Draw(1, 0))]
    assert len(set(seen)) == 3
    assert data[1]["image"].tobytes() == seen[0]
    still = AugmentedImageDatastore((16, 16), MemorySource(FILES))
    assert np.array_equal(still.sample(1, Draw(0, 0))["image"], still.sample(1, Draw(8, 9))["image"])


def test_modes_cut_what_they_say() -> None:
    source = Everything(PHOTOS)
    image = PHOTOS[0]  # 60 x 80
    assert np.array_equal(AugmentedImageDatastore((60, 80), source)[0]["image"], image)
    center = AugmentedImageDatastore((40, 40), source, mode="center_crop")[0]["image"]
    assert np.array_equal(center, image[10:50, 20:60])
    boxed = AugmentedImageDatastore((40, 40), source, mode="letterbox", augment=ImageAugmenter(fill_value=7))[0][
        "image"
    ]
    inner = AugmentedImageDatastore((30, 40), source)[0]["image"]
    assert np.array_equal(boxed, np.pad(inner, ((5, 5), (0, 0), (0, 0)), constant_values=7))
    random = AugmentedImageDatastore((40, 40), source, mode="random_crop")
    places = set()
    for epoch in range(30):
        cut = random.sample(0, Draw(0, epoch))["image"]
        found = [(y, x) for y in range(21) for x in range(41) if np.array_equal(image[y : y + 40, x : x + 40], cut)]
        assert len(found) == 1
        places.update(found)
    assert len(places) > 20
    small = AugmentedImageDatastore(
        (40, 40), source, mode="random_resized_crop", crop_scale=(0.1, 0.1), crop_ratio=(1, 1)
    )
    assert small.crop == RandomResizedCrop((0.1, 0.1), (1, 1))


def test_orientation_is_applied_before_everything_else() -> None:
    upright = np.rot90(PHOTOS[1], -1)
    turned = MemorySource([encode(PHOTOS[1], "PNG", exif=exif(6))])
    straight = MemorySource([encode(np.ascontiguousarray(upright), "PNG")])
    for mode in ("resize", "random_crop", "random_resized_crop"):
        one = AugmentedImageDatastore((30, 40), turned, mode=mode, augment=MOVING).sample(0, DRAW)
        other = AugmentedImageDatastore((30, 40), straight, mode=mode, augment=MOVING).sample(0, DRAW)
        assert np.array_equal(one["image"], other["image"])


def test_what_lies_outside_is_filled() -> None:
    away = ImageAugmenter(x_translation=200, fill_value=(1, 2, 3))
    data = AugmentedImageDatastore((8, 8), MemorySource(FILES), augment=away)
    assert (data[0]["image"] == (1, 2, 3)).all()


# --- description -----------------------------------------------------------------------------------------------------


class Unread(MemorySource):
    def encoded(self, ids):
        raise AssertionError("nothing needs to be read")


def test_schema_reads_nothing() -> None:
    data = AugmentedImageDatastore((24, 32), Unread(FILES))
    assert data.schema().fields == (Field("image", (24, 32, 3), "uint8", True), Field("label", (), "int64"))
    gray = AugmentedImageDatastore((24, 32), Unread(FILES, labels=False), color="gray")
    assert gray.schema().fields == (Field("image", (24, 32, 1), "uint8", True),)
    kept = AugmentedImageDatastore((24, 32, 3), Unread(FILES), color="keep")
    assert kept.schema().fields[0].shape == (24, 32, 3)


def test_schema_with_kept_colors_reads_one_image() -> None:
    gray = MemorySource([encode(image[..., 0]) for image in PHOTOS])
    assert AugmentedImageDatastore((24, 32), gray, color="keep").schema().fields[0].shape == (24, 32, 1)


def test_samples_have_a_key_and_labels_only_where_there_are_any() -> None:
    with_labels = AugmentedImageDatastore((8, 8), MemorySource(FILES))[5]
    assert (with_labels["label"], with_labels["key"], set(with_labels)) == (5, "picture5", {"image", "label", "key"})
    assert set(AugmentedImageDatastore((8, 8), MemorySource(FILES, labels=False))[5]) == {"image", "key"}


def test_other_fields_travel_along() -> None:
    data = AugmentedImageDatastore((8, 8), Everything(PHOTOS), augment=MOVING)
    assert [field.name for field in data.schema().fields] == ["image", "label", "angle"]
    assert filled(data, [3, 1])["angle"].tolist() == [1.5, 0.5]
    assert data[3]["name"] == "n3"


def test_any_map_style_dataset_is_a_source() -> None:
    pairs = [(torch.from_numpy(image), torch.tensor(number)) for number, image in enumerate(PHOTOS)]
    data = AugmentedImageDatastore((24, 32), pairs, augment=MOVING)
    other = AugmentedImageDatastore((24, 32), Everything(PHOTOS), augment=MOVING)
    assert np.array_equal(filled(data, [0, 5])["image"], filled(other, [0, 5])["image"])
    assert filled(data, [5])["label"].tolist() == [5]
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=4)))
    assert batch["image"].shape == (4, 24, 32, 3)


def test_arrays_get_the_colors_asked_for() -> None:
    gray, alpha = PHOTOS[0][..., 0], np.dstack((PHOTOS[0], np.zeros(SIZES[0], np.uint8)))
    for image in (gray, gray[..., np.newaxis]):
        found = AugmentedImageDatastore(SIZES[0], [{"image": image}])[0]["image"]
        assert np.array_equal(found, np.repeat(gray[..., np.newaxis], 3, axis=2))
        kept = AugmentedImageDatastore(SIZES[0], [{"image": image}], color="keep")[0]["image"]
        assert np.array_equal(kept, gray[..., np.newaxis])
    assert (AugmentedImageDatastore(SIZES[0], [{"image": alpha}])[0]["image"] == 255).all()  # transparent: white
    many = np.zeros((9, 9, 7), np.uint8)
    assert AugmentedImageDatastore((4, 4), [{"image": many}], color="keep")[0]["image"].shape == (4, 4, 7)


def test_what_the_source_knows_is_passed_on() -> None:
    source = MemorySource(FILES)
    data = AugmentedImageDatastore((8, 8), source)
    assert len(data) == 6
    assert data.shard_sizes.tolist() == [1, 5]
    assert data.locate(4) == "memory/picture4"
    assert data.source is source


def test_the_fingerprint_covers_all_settings_and_the_source() -> None:
    source = MemorySource(FILES)
    settings = [
        {}, {"mode": "center_crop"}, {"mode": "random_resized_crop"}, {"color": "gray"}, {"augment": MOVING},
        {"mode": "random_resized_crop", "crop_scale": (0.5, 1)}, {"augment": ImageAugmenter(rotation=slow)},
        {"augment": ImageAugmenter(fill_value=1)}, {"photometric": COLORS}, {"photometric": ColorAugmenter(hue=0.1)},
        {"photometric": [COLORS, ColorAugmenter(hue=0.1)]},
    ]  # fmt: skip
    found = [AugmentedImageDatastore((8, 9), source, **setting).fingerprint for setting in settings]
    found.append(AugmentedImageDatastore((9, 8), source).fingerprint)
    found.append(AugmentedImageDatastore((8, 9), MemorySource(FILES[:3])).fingerprint)
    assert len(set(found)) == len(found)
    again = [AugmentedImageDatastore((8, 9), source, **setting).fingerprint for setting in settings]
    assert again == found[: len(settings)]
    mode = AugmentedImageDatastore((8, 9), source, mode=RandomResizedCrop()).fingerprint
    assert mode == found[2]


def test_the_clock_sees_all_three_stages() -> None:
    for source in (MemorySource(FILES), Everything(PHOTOS)):
        data = AugmentedImageDatastore((64, 64), source, augment=MOVING)
        rows, clock = rows_of(data, 6), Clock()
        data.fill(np.arange(6), DRAW, rows, clock)
        assert all(clock.seconds[stage] > 0 for stage in Stage)


def test_it_pickles_and_another_process_gives_the_same_bits() -> None:
    augment = ImageAugmenter(rotation=slow, x_reflection=True)
    data = AugmentedImageDatastore((24, 32), MemorySource(FILES), mode="random_resized_crop", augment=MOVING)
    expected = filled(data, range(6))["image"]
    assert np.array_equal(filled(pickle.loads(pickle.dumps(data)), range(6))["image"], expected)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        samples = list(pool.map(operator.getitem, [data] * 3, range(3)))
    for index, sample in enumerate(samples):
        assert np.array_equal(sample["image"], data[index]["image"])
    assert (
        pickle.loads(pickle.dumps(AugmentedImageDatastore((8, 8), PHOTOS_AS_DICTS, augment=augment))).augment == augment
    )


PHOTOS_AS_DICTS = [{"image": image} for image in PHOTOS]


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "settings", "message"),
    [
        ((0, 8), {}, "output_size must be"),
        ((8,), {}, "output_size must be"),
        ((8, 8, 3, 1), {}, "output_size must be"),
        ((8.0, 8), {}, "output_size must be"),
        ((8, 8, 1), {}, "asks for 1 channels, but color='rgb' gives 3"),
        ((3, 8, 8), {}, "asks for 8 channels, but color='rgb' gives 3"),
        ((8, 8, 3), {"color": "gray"}, "asks for 3 channels, but color='gray' gives 1"),
        ((8, 8), {"color": "bgr"}, "color must be one of"),
        ((8, 8), {"mode": "centercrop"}, "mode must be one of 'resize', 'letterbox', 'center_crop'"),
        ((8, 8), {"crop_scale": (0.5, 1)}, "crop_scale and crop_ratio belong to mode=.random_resized_crop"),
        ((8, 8), {"mode": RandomResizedCrop(), "crop_ratio": (1, 1)}, "crop_scale and crop_ratio belong to"),
        ((8, 8), {"mode": "random_resized_crop", "crop_scale": (0, 1)}, "scale of a random resized crop must be"),
        (
            (8, 8),
            {"augment": COLORS},
            r"augment must be an ImageAugmenter\(...\), got ColorAugmenter\(.*belongs to .*photometric=",
        ),
        (
            (8, 8),
            {"photometric": MOVING},
            r"photometric must be operations .* got ImageAugmenter\(.* belongs to .*augment=",
        ),
        ((8, 8), {"photometric": [COLORS, ColorAugmenter]}, "photometric must be operations on pixels .*, got <class"),
        ((8, 8), {"augment": ImageAugmenter(fill_value=(1, 2))}, "fill_value=.* has 2 values, but color='rgb' has 3"),
        ((8, 8), {"augment": ImageAugmenter(fill_value=(1, 2, 3)), "color": "gray"}, "fill_value=.* has 3 values"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(size, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        AugmentedImageDatastore(size, MemorySource(FILES), **settings)


def test_sizes_with_fitting_channels_are_accepted() -> None:
    assert AugmentedImageDatastore((8, 9, 3), MemorySource(FILES))[0]["image"].shape == (8, 9, 3)
    assert AugmentedImageDatastore([8, 9, 1], MemorySource(FILES), color="gray")[0]["image"].shape == (8, 9, 1)


@pytest.mark.parametrize("mode", ["center_crop", "random_crop"])
def test_an_image_smaller_than_the_crop_is_named(mode) -> None:
    data = AugmentedImageDatastore((70, 48), MemorySource(FILES), mode=mode)
    with pytest.raises(
        ShapeError, match=r"memory/picture3: a crop of 70 x 48 .* does not fit into an image of 48 x 64"
    ):
        filled(data, [1, 3])


def test_images_whose_channels_have_no_colors_are_named() -> None:
    alpha = np.zeros((8, 8, 4), np.uint8)
    data = AugmentedImageDatastore((8, 8), [{"image": alpha}], color="keep", photometric=COLORS)
    with pytest.raises(
        ShapeError, match=r"sample 0 of list: images must have 1 or 3 channels, got uint8 \(1, 4, 8, 8\)"
    ):
        filled(data, [0])


def test_a_damaged_file_is_named() -> None:
    data = AugmentedImageDatastore((8, 8), MemorySource([*FILES[:2], FILES[2][:300]]))
    with pytest.raises(DecodeError, match="memory/picture2 cannot be decoded"):
        filled(data, [0, 1, 2])
    with pytest.raises(DecodeError, match="memory/picture2 cannot be decoded"):
        data[2]


def test_mixed_channels_are_named() -> None:
    mixed = MemorySource([FILES[1], encode(PHOTOS[0][..., 0])])
    data = AugmentedImageDatastore((8, 8), mixed, color="keep")
    with pytest.raises(ShapeError, match="memory/picture1 has 1 channels where 3 are wanted: choose color"):
        filled(data, [0, 1])
    with pytest.raises(ShapeError, match="memory/picture1 has 1 channels where 3 are wanted"):
        AugmentedImageDatastore((8, 8, 3), mixed, color="keep")[1]


@pytest.mark.parametrize(
    "image", [np.zeros((8, 8), np.float32), np.zeros((3, 8, 8), np.uint8), np.zeros(8, np.uint8), "text"]
)
def test_arrays_that_are_no_images_are_named(image) -> None:
    data = AugmentedImageDatastore((8, 8), [{"image": image}])
    with pytest.raises(ShapeError, match=r"the image of sample 0 of list is .*: it must be uint8 \(H, W\)"):
        data[0]


def test_a_sample_without_an_image_is_named() -> None:
    with pytest.raises(FieldError, match=r'sample 0 of list has no field "image": it has \[\'x\'\]'):
        AugmentedImageDatastore((8, 8), [{"x": 1}])[0]


def test_a_label_that_is_missing_is_named() -> None:
    class Forgetful(MemorySource):
        @property
        def has_labels(self) -> bool:
            return True

    data = AugmentedImageDatastore((8, 8), Forgetful(FILES, labels=False))
    with pytest.raises(FieldError, match="memory/picture4 has no field 'label'"):
        filled(data, [4])


def test_an_empty_source_and_ids_out_of_range_are_errors() -> None:
    with pytest.raises(ConfigError, match="MemorySource is empty"):
        AugmentedImageDatastore((8, 8), MemorySource([])).schema()
    data = AugmentedImageDatastore((8, 8), MemorySource(FILES))
    for index in (-1, 6):
        with pytest.raises(IndexError, match=r"sample ids must be in 0 \.\. 5"):
            data[index]


# --- one around another ----------------------------------------------------------------------------------------------


class Between(Datastore):
    """A datastore of a user's around others, which it keeps in a list."""

    def __init__(self, *parts) -> None:
        self.parts = list(parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, index):
        return self.sample(index, Draw())

    def sample(self, index, draw):
        return self.parts[0].sample(index, draw)


@pytest.mark.parametrize("between", [lambda inner: inner, Between, lambda inner: transform(inner, np.copy)])
def test_a_datastore_around_another_one_draws_for_itself(between) -> None:
    flip = ImageAugmenter(x_reflection=True)
    corner = np.zeros((4, 4, 1), np.uint8)
    corner[0, 0] = 1
    inner = AugmentedImageDatastore((4, 4), [{"image": corner}] * 400, augment=flip, color="keep")
    outer = AugmentedImageDatastore((4, 4), between(inner), augment=flip, color="keep")
    flipped = [[data.sample(i, DRAW)["image"][0, 3, 0] for i in range(400)] for data in (inner, outer)]
    own = np.logical_xor(*flipped)
    assert abs(np.corrcoef(flipped[0], own)[0, 1]) < 0.2
    assert 150 < own.sum() < 250
    assert own.tolist() == [x for _, x in flip.sample_mirrors(np.arange(400), outer.own_draw(DRAW))]
    assert inner.own_draw(DRAW) == DRAW != outer.own_draw(DRAW)


def test_crops_and_colors_of_a_datastore_around_another_one_are_its_own() -> None:
    settings = {"mode": "random_crop", "photometric": [COLORS, RandomErasing(), RandomErasing()]}
    inner = AugmentedImageDatastore((40, 40), MemorySource(FILES), **settings)
    outer = AugmentedImageDatastore((24, 24), inner, **settings)
    plain = AugmentedImageDatastore((24, 24), inner, mode="random_crop")
    left = AugmentedImageDatastore((24, 24), inner, mode="random_crop", policy=RandAugment())
    policy = AugmentedImageDatastore((24, 24), inner, mode="random_crop", policy=RandAugment().geometry)
    ids, own = np.arange(6), outer.own_draw(DRAW)
    for data, operations, whole in ((plain, outer.photometric, outer), (policy, [RandAugment()], left)):
        images = torch.from_numpy(filled(data, ids)["image"]).permute(0, 3, 1, 2)
        expected = apply_all(operations, images, ids, own).permute(0, 2, 3, 1).numpy()
        assert np.array_equal(filled(whole, ids)["image"], expected)
        assert np.array_equal([whole.sample(i, DRAW)["image"] for i in range(6)], expected)
    numbers = own.uniforms(ids, Purpose.CROP, 2)
    for index in range(6):
        left_edge, top = (int(number * 17) for number in numbers[index])
        image = inner.sample(index, DRAW)["image"][top : top + 24, left_edge : left_edge + 24]
        assert np.array_equal(plain.sample(index, DRAW)["image"], image)


# --- ends of ranges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["resize", "letterbox", "random_resized_crop"])
@pytest.mark.parametrize("output", [(1, 1), (8, 6)])
def test_every_scale_that_is_allowed_can_be_made(mode, output) -> None:
    long = np.full((60_000, 60, 3), 200, np.uint8)
    for scale in (1e-3, 1e6):
        augment = ImageAugmenter(scale=scale, rotation=3)
        for image in (long, PHOTOS[0]):
            data = AugmentedImageDatastore(output, [{"image": image}], mode=mode, augment=augment)
            assert data[0]["image"].shape == (*output, 3)


@pytest.mark.parametrize("shape", [(0, 10, 3), (0, 10, 1), (0, 10), (10, 0), (10, 0, 4), (0, 0, 3)])
@pytest.mark.parametrize("mode", ["resize", "letterbox", "center_crop", "resized_center_crop", "random_resized_crop"])
@pytest.mark.parametrize("color", ["rgb", "keep"])
def test_images_without_pixels_are_refused(shape, mode, color) -> None:
    good = np.zeros((10, 10, *(shape[2:] or (1,))), np.uint8)
    data = AugmentedImageDatastore(
        (4, 4), [{"image": good}, {"image": np.zeros(shape, np.uint8)}], mode=mode, color=color
    )
    with pytest.raises(ShapeError, match=r"sample 1 of list.*at least one pixel"):
        data[1]
    with pytest.raises(ShapeError, match=r"sample 1 of list.*at least one pixel"):
        filled(data, [0, 1])


@pytest.mark.parametrize("size", [(True, True), (8, True), (8.0, 8), (np.True_, 8)])
def test_sizes_are_whole_numbers(size) -> None:
    with pytest.raises(ConfigError, match=r"output_size must be \(height, width\) in whole pixels"):
        AugmentedImageDatastore(size, MemorySource(FILES))
