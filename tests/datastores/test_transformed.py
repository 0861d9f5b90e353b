"""Users' functions on samples: whatever they draw from, a sample depends on (seed, epoch, id) alone."""

import random
from copy import copy
from functools import partial

import numpy as np
import pytest
import torch
from pictures import MemorySource, encode, photo
from PIL import Image, ImageFilter
from torchvision import tv_tensors
from torchvision.transforms import v2

from headrace.augment import ColorAugmenter, Draw, ImageAugmenter, Normalize
from headrace.datastores import AugmentedImageDatastore, Datastore, Loader, normalize, transform
from headrace.datastores.clock import Clock, Stage
from headrace.errors import ConfigError, FieldError, ShapeError

FILES = [encode(photo(40 + number, 50, number)) for number in range(24)]
DRAW = Draw(seed=2, epoch=1)
JITTER = v2.Compose([v2.RandomResizedCrop((20, 24)), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)])


def images(**settings) -> AugmentedImageDatastore:
    return AugmentedImageDatastore((20, 24), MemorySource(FILES), augment=ImageAugmenter(x_reflection=True), **settings)


def noisy(image: np.ndarray) -> np.ndarray:
    """Draw from all three generators, and change the image in place."""
    image += np.uint8(random.randrange(7))
    image += np.random.randint(0, 9, image.shape, np.uint8)  # noqa: NPY002
    image += torch.randint(0, 9, image.shape, dtype=torch.uint8).numpy()
    return image


def draws(sample: dict) -> dict:
    return {"numbers": np.array([random.random(), np.random.rand(), torch.rand(()).item()]), "label": sample["label"]}  # noqa: NPY002


def batches(data: Datastore, **settings) -> list[torch.Tensor]:
    with Loader(data, 8, seed=5, **settings) as loader:
        return [batch.images.clone() for batch in loader]


# --- what depends on what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [noisy, JITTER, v2.TrivialAugmentWide()], ids=["numpy", "torchvision", "auto"])
def test_workers_order_and_company_change_nothing(function) -> None:
    def data() -> Datastore:
        return transform(AugmentedImageDatastore((30, 30), MemorySource(FILES), mode="random_crop"), function)

    expected = batches(data())
    for settings in ({"workers": 2}, {"workers": 1, "start_method": "fork"}):
        assert all(map(torch.equal, batches(data(), **settings), expected))
    backwards = [data().sample(index, DRAW)["image"] for index in reversed(range(24))][::-1]
    several = [sample["image"] for sample in data().sample_many(np.arange(24), DRAW)]
    assert all(map(np.array_equal, backwards, several))
    assert len({data().sample(3, Draw(2, epoch))["image"].tobytes() for epoch in range(5)}) > 2


@pytest.mark.parametrize("function", [noisy, JITTER], ids=["numpy", "torchvision"])
def test_rows_made_together_are_the_samples(function) -> None:
    photometric = ColorAugmenter(brightness=(0.5, 1.5))
    sources = [
        images(photometric=photometric),
        normalize(images(), Normalize(mean=0.5, std=0.25)),
        transform(images(), noisy),
        [{"image": photo(20, 24), "label": index} for index in range(24)],
    ]
    for source in sources:
        if function is noisy and source is sources[1]:
            continue  # it draws bytes
        data, clock = transform(source, function), Clock()
        rows = {field.name: np.zeros((24, *field.shape), field.dtype) for field in data.schema().fields}
        data.fill(np.arange(24), DRAW, rows, clock)
        for index in range(24):
            sample = data.sample(index, DRAW)
            assert np.array_equal(rows["image"][index], sample["image"])
            assert rows["label"][index] == sample["label"]
        assert clock.seconds[Stage.AUGMENT] > 0


def test_the_global_generators_are_given_back() -> None:
    def states() -> tuple[object, ...]:
        return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()  # noqa: NPY002

    data = transform(images(), noisy)
    before = states()
    first = data.sample(1, DRAW)
    batches(data)
    assert states() == before
    random.seed(1)
    torch.manual_seed(1)
    assert np.array_equal(data.sample(1, DRAW)["image"], first["image"])


def test_functions_of_one_sample_draw_different_numbers() -> None:
    class Drawing(Datastore):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> dict:
            return {"label": index} | draws({"label": index})

    def kept(sample: dict) -> dict:
        return {"earlier": sample["numbers"], **draws(sample)}

    def more(sample: dict) -> dict:
        return {"earliest": sample["earlier"], "early": sample["numbers"], **draws(sample)}

    data = transform(transform(Drawing(), kept, field=None), more, field=None)
    for index in range(5):
        sample = data.sample(index, DRAW)
        numbers = np.concatenate([sample["earliest"], sample["early"], sample["numbers"]])
        assert len(set(numbers.tolist())) == 9
        assert np.array_equal(Drawing().sample(index, DRAW)["numbers"], sample["earliest"])
    through = transform(normalize(transform(images(), noisy), Normalize(mean=0, std=1)), draws, field=None)
    assert through._depth == 2


# --- what functions get and give --------------------------------------------------------------------------------------


def test_torchvision_gets_and_gives_tensors_of_channels_height_and_width() -> None:
    seen = []

    class Look(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            seen.append(image)
            return v2.functional.hflip(v2.functional.to_image(image))  # a tv_tensor

    sample = transform(MemorySource(FILES), Look())[3]
    assert (seen[0].dtype, seen[0].shape, seen[0].is_contiguous()) == (torch.uint8, (3, 43, 50), True)
    assert np.array_equal(sample["image"], MemorySource(FILES)[3]["image"][:, ::-1])
    assert type(sample["image"]) is np.ndarray
    assert (sample["label"], sample["key"]) == (3, "picture3")


def test_floats_are_images_too() -> None:
    recipe = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)])
    for found, plain in zip(batches(transform(images(), recipe)), batches(images()), strict=True):
        assert found.shape == (8, 3, 20, 24)
        assert torch.allclose(found, (plain / 255 - 0.5) / 0.25, atol=1e-6)
    gray = transform([{"image": photo(6, 8)[..., 0]}], v2.ToDtype(torch.float32))
    assert gray[0]["image"].shape == (6, 8, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda image: Image.fromarray(image).filter(ImageFilter.MedianFilter),
        lambda image: torch.from_numpy(image).permute(2, 0, 1).flip(2),
        lambda image: image[::2, ::2],
        partial(np.clip, a_min=10, a_max=99),
    ],
)
def test_any_callable_will_do(function) -> None:
    data = transform(images(), function)
    array = np.array(images()[2]["image"])
    result = function(array)
    expected = result.permute(1, 2, 0).numpy() if isinstance(result, torch.Tensor) else np.asarray(result)
    assert np.array_equal(data[2]["image"], expected)
    assert all(map(torch.equal, batches(data, workers=1, start_method="fork"), batches(data)))


def test_the_source_keeps_its_arrays() -> None:
    image = photo(6, 8)
    source = [{"image": image, "mask": image[..., 0], "label": 1}]
    before = image.copy()

    def wild(sample: dict) -> dict:
        sample["image"][:] = 0
        sample["mask"][:] = 0
        return sample | {"image": sample["image"][:3]}

    assert not transform(source, wild, field=None)[0]["mask"].any()
    assert transform(source, noisy)[0]["label"] == 1
    transform(source, v2.RandomErasing(p=1, inplace=True))[0]
    assert np.array_equal(image, before)
    other = transform([{"image": image, "clean": image}], lambda clean: clean[:2], field="clean")[0]
    assert (other["image"].shape, other["clean"].shape) == ((6, 8, 3), (2, 8, 3))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_sent_to_workers_is_found_at_once() -> None:
    data = transform(transform(images(), lambda image: image), noisy)
    with pytest.raises(ConfigError, match=r"TransformedDatastore.source.function \(.*lambda.* start_method=\"fork\""):
        Loader(data, 8, workers=1)
    nested = transform(images(), v2.Compose([v2.RandomHorizontalFlip(), v2.Lambda(lambda image: image)]))
    with pytest.raises(ConfigError, match=r"TransformedDatastore.function.transforms.1.\w+ \(.*lambda"):
        Loader(nested, 8, workers="auto")
    Loader(data, 8)
    Loader(data, 8, workers=1, start_method="fork")


@pytest.mark.parametrize("wrong", [None, "flip", v2.RandomHorizontalFlip])
def test_what_is_no_function_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match="a transform must be a function"):
        transform(images(), wrong)


def test_errors_name_the_function_and_the_sample() -> None:
    with pytest.raises(ConfigError, match="RandomHorizontalFlip changes one image: name its field"):
        transform(images(), v2.RandomHorizontalFlip(), field=None)
    with pytest.raises(ShapeError, match="print returned NoneType for memory/picture2: it must return an image"):
        transform(images(), print)[2]
    with pytest.raises(ShapeError, match="shape returned tuple for memory/picture2: it must return an image"):
        transform(images(), np.shape)[2]
    with pytest.raises(ShapeError, match="len returned int for memory/picture2: it must return a mapping"):
        transform(images(), len, field=None)[2]
    with pytest.raises(FieldError, match="memory/picture2 has no field 'picture': it has"):
        transform(images(), noisy, field="picture")[2]


def test_the_fingerprint_counts_the_function_and_not_where_it_lies() -> None:
    def made(p: float) -> Datastore:
        return transform(images(), v2.Compose([v2.RandomHorizontalFlip(p), v2.Lambda(noisy)]))

    assert made(0.5).fingerprint == made(0.5).fingerprint
    variants = [made(0.5), made(0.6), transform(images(), noisy), transform(images(), noisy, field=None), images()]
    assert len({data.fingerprint for data in variants}) == 5
    assert transform(images(), partial(noisy)).fingerprint == transform(images(), partial(noisy)).fingerprint
    twice, thrice = (transform(images(), lambda image, factor=factor: image * factor) for factor in (2, 3))
    assert twice.fingerprint != thrice.fingerprint


def test_a_function_that_remembers_what_it_did_stays_the_same_function() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, image):
            self.calls += 1
            return image

    data = transform(images(), Counting())
    before = data.fingerprint
    assert data[1]["key"] == "picture1"
    assert data.fingerprint == before == transform(images(), Counting()).fingerprint


# --- which fields are images ------------------------------------------------------------------------------------------


def several(sample: dict) -> dict:
    """Return tensors of many shapes beside the image."""
    planes = torch.from_numpy(sample["image"]).permute(2, 0, 1)
    return {
        "image": planes,
        "video": torch.arange(24).reshape(2, 3, 4),
        "stack": torch.arange(24, dtype=torch.uint8).reshape(3, 4, 2),
        "named": tv_tensors.Image(planes),
        "mask": tv_tensors.Mask(torch.zeros(1, 20, 24, dtype=torch.uint8)),
        "label": 1,
    }


def test_tensors_of_a_sample_keep_their_axes_unless_they_are_images() -> None:
    data = transform(images(), several, field=None)
    shapes = {name: np.shape(value) for name, value in data[2].items()}
    assert shapes == {
        "image": (20, 24, 3), "video": (2, 3, 4), "stack": (3, 4, 2), "named": (20, 24, 3), "mask": (1, 20, 24),
        "label": (),
    }  # fmt: skip
    assert data[2]["video"].tolist() == torch.arange(24).reshape(2, 3, 4).tolist()
    with Loader(data, 4) as loader:
        batch = next(iter(loader))
    assert batch.images.shape == batch["named"].shape == (4, 3, 20, 24)
    assert torch.equal(batch.images, batch["named"])
    assert (batch["video"].shape, batch["stack"].shape) == ((4, 2, 3, 4), (4, 3, 4, 2))


@pytest.mark.parametrize("field", ["image", None])
@pytest.mark.parametrize("channels", [(), (1,), (2,), (3,), (4,)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_label_maps_are_never_images_and_second_images_always(field, channels, dtype) -> None:
    sample = {
        "image": np.zeros((9, 8, 3), np.uint8), "mask": np.zeros((9, 8, *channels), dtype),
        "second": np.zeros((9, 8, 3), np.uint8),
    }  # fmt: skip
    moved = AugmentedImageDatastore((5, 6), [sample] * 2, masks=["mask"], images=["second"])
    for data in (moved, transform(moved, np.copy if field else copy, field=field), moved.at(DRAW)):
        with Loader(data, 2) as loader:
            batch = next(iter(loader))
        assert batch["mask"].shape == (2, 5, 6, *channels)
        assert batch["second"].shape == batch.images.shape == (2, 3, 5, 6)


# --- albumentations ---------------------------------------------------------------------------------------------------


@pytest.fixture
def albumentations():
    return pytest.importorskip("albumentations")


def test_albumentations_is_seeded_per_sample(albumentations) -> None:
    recipe = albumentations.Compose([
        albumentations.HorizontalFlip(p=0.5), albumentations.VerticalFlip(p=0.5), albumentations.GaussNoise(p=0.5),
    ])  # fmt: skip
    plain = AugmentedImageDatastore((20, 24), MemorySource(FILES))
    data = transform(plain, recipe)
    assert all(map(torch.equal, batches(data, workers=2), batches(data)))
    for function in (albumentations.GaussNoise(p=1), albumentations.OneOf([albumentations.GaussNoise(p=1)], p=1)):
        one = transform(plain, function)
        assert np.array_equal(one.sample(2, DRAW)["image"], one.sample(2, DRAW)["image"])
        assert not np.array_equal(one.sample(2, DRAW)["image"], one.sample(2, Draw(3))["image"])


def test_the_parts_of_a_composition_draw_different_numbers(albumentations) -> None:
    flips = [albumentations.HorizontalFlip(p=0.5), albumentations.VerticalFlip(p=0.5)]
    corner = np.zeros((4, 4, 1), np.uint8)
    corner[0, 0] = 1
    data = transform([{"image": corner}] * 400, albumentations.Compose(flips))
    places = [int(np.argmax(data.sample(index, DRAW)["image"])) for index in range(400)]
    assert sorted(set(places)) == [0, 3, 12, 15]
    assert min(places.count(place) for place in set(places)) > 60


def test_albumentations_moves_whole_samples(albumentations) -> None:
    flip = albumentations.Compose([albumentations.HorizontalFlip(p=0.5)])
    source = [{"image": photo(6, 8), "mask": photo(6, 8)[..., 0], "label": 3}] * 30
    data, seen = transform(source, flip, field=None), set()
    for index in range(30):
        sample = data.sample(index, DRAW)
        assert np.array_equal(sample["image"][..., 0], sample["mask"])
        assert sample["label"] == 3
        seen.add(sample["mask"].tobytes())
    assert len(seen) == 2
