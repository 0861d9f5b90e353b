"""headrace view: what a model would see, on one sheet."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import photo
from PIL import Image

from headrace.augment import Draw, ImageAugmenter, Normalize, RandAugment
from headrace.datastores import AugmentedImageDatastore, ImageDatastore, normalize, transform
from headrace.errors import ConfigError, FieldError, ShapeError
from headrace.tools.cli import main
from headrace.tools.view import _as_bytes, _names, parse_augmenter, preview, spread


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(12):
        path = folder / "images" / ["cat", "dog"][number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(60, 80, number)).save(path)
    assert main(["build", str(folder / "images"), str(folder / "shards"), "--quiet"]) == 0
    return folder


def shows(sheet: Image.Image, picture: np.ndarray) -> bool:
    """Say whether a picture is somewhere on the sheet, pixel by pixel."""
    pixels = np.asarray(sheet)
    height, width = picture.shape[:2]
    starts = np.argwhere((pixels[: -height + 1, : -width + 1] == picture[0, 0]).all(2))
    return any(np.array_equal(pixels[y : y + height, x : x + width], picture) for y, x in starts)


def test_a_sheet_shows_exactly_what_training_would_see(pictures: Path) -> None:
    augment = ImageAugmenter(rotation=(-20, 20))
    data = AugmentedImageDatastore((168, 168), ImageDatastore(pictures / "images"), augment=augment)
    sheet = preview(data, [3, 7], draws=2, seed=5, epoch=4)
    for index in (3, 7):
        for epoch in (4, 5):
            assert shows(sheet, data.sample(index, Draw(5, epoch))["image"])
    assert not shows(sheet, data.sample(3, Draw(5, 6))["image"])
    small = AugmentedImageDatastore((168, 168), ImageDatastore(pictures / "images"))
    original = Image.fromarray(small.source[3]["image"]).resize((168, 126), Image.Resampling.NEAREST)
    assert shows(sheet, np.asarray(original))


@pytest.mark.parametrize("what", ["images", "shards"])
@pytest.mark.parametrize("name", ["sheet.png", "sheet.JPG", "sheet.webp"])
def test_folders_and_shards_become_sheets(
    pictures: Path, what: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--augment", "rotation=-10:10,x_reflection", "--size", "40x60", "--mode", "letterbox", "--epoch", "3"]
    assert main(["view", str(pictures / what), "-o", str(tmp_path / name), *words, "--draws", "2"]) == 0
    with Image.open(tmp_path / name) as sheet:
        assert (sheet.format, sheet.mode) == ({"g": "PNG", "G": "JPEG", "p": "WEBP"}[name[-1]], "RGB")
        assert sheet.width > 8 * 168
        assert f"8 of 12 images, {sheet.width} x {sheet.height} pixels" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [name], "no temporary file stays"


def test_which_samples(pictures: Path, tmp_path: Path) -> None:
    sizes = []
    for words in (["--ids", "3,5"], ["--samples", "2"], ["--samples", "999"]):
        path = tmp_path / "sheet.png"
        assert main(["view", str(pictures / "shards"), "-o", str(path), *words]) == 0
        with Image.open(path) as sheet:
            sizes.append(sheet.size)
    assert sizes[0] == sizes[1]
    assert sizes[2][1] > 1.8 * sizes[0][1], "12 samples: two bands"
    assert spread(12, 5) == [0, 2, 4, 7, 9]
    assert spread(0, 5) == []


def test_broken_images_stop_it_or_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        Image.fromarray(photo(30, 40, number)).save(tmp_path / "in" / f"{number}.png")
    (tmp_path / "in" / "2.png").write_bytes(b"no image")
    command = ["view", str(tmp_path / "in"), "-o", str(tmp_path / "sheet.webp")]
    assert main(command) == 1
    assert "2.png cannot be decoded" in (message := capsys.readouterr().err)
    assert "--skip-bad" in message
    assert main([*command, "--skip-bad"]) == 0
    shown = capsys.readouterr()
    assert f"headrace view: left out: {tmp_path}/in/2.png cannot be decoded" in shown.err
    assert "sheet.webp: 3 of 4 images" in shown.out
    assert main([*command, "--skip-bad", "--ids", "2"]) == 1
    assert main([*command, "--skip-bad", "--ids", "9"]) == 1
    assert "there are samples 0 .. 3" in capsys.readouterr().err


def test_one_image_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(photo(30, 40)).save(tmp_path / "one.png")
    assert main(["view", str(tmp_path), "-o", str(tmp_path / "sheet.webp")]) == 0
    assert "1 of 1 image, " in capsys.readouterr().out


def test_what_stands_above_a_column() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    samples = [
        {"image": image},
        {"image": image, "label": np.int64(1)},
        {"image": image, "key": "k"},
        {"image": image, "label": 7, "key": "k"},
    ]

    class Named(list):
        classes = ("cat", "dog")

    plain, named = (AugmentedImageDatastore((8, 8), source) for source in (samples, Named(samples)))
    expected = [("sample 0", ""), ("label 1", "sample 1"), ("sample 2", "k"), ("label 7", "k")]
    assert [_names(plain, index, sample) for index, sample in enumerate(samples)] == expected
    assert _names(named, 1, samples[1]) == ("dog", "sample 1")
    assert _names(named, 3, samples[3]) == ("label 7", "k")


@pytest.mark.parametrize("ids", ["seg.png", 3, [1.5], ["1"], Path("x.png")])
def test_ids_that_are_none(ids) -> None:
    data = AugmentedImageDatastore((8, 8), [{"image": np.zeros((8, 8, 3), np.uint8)}] * 3)
    with pytest.raises(ConfigError, match=r"ids must be a list of sample numbers, got .* save"):
        preview(data, ids)
    assert preview(data, np.array([1, 2])).mode == "RGB"


def test_only_datastores_are_shown() -> None:
    for wrong in (3, None, iter([{"image": np.zeros((8, 8, 3), np.uint8)}])):
        with pytest.raises(ConfigError, match="is no datastore: it needs __len__ and __getitem__"):
            preview(wrong)  # type: ignore[arg-type]


def red(image: np.ndarray) -> np.ndarray:
    return image * np.uint8([1, 0, 0])


def as_floats(sample: dict[str, object]) -> dict[str, object]:
    return {"image": torch.from_numpy(np.asarray(sample["picture"])).permute(2, 0, 1) / 255, "label": 3}


def test_everything_that_has_images_is_shown() -> None:
    samples = [{"image": photo(126, 168, number), "label": number} for number in range(3)]
    base = AugmentedImageDatastore((168, 168), samples, augment=ImageAugmenter(rotation=(-20, 20)))
    draw = Draw(5, 1)
    plain, picture = photo(126, 168, 1), base.sample(1, draw)["image"]
    normalized = normalize(transform(base, red), Normalize(mean=(0.5, 0.2, 0.1), std=(0.3, 0.3, 0.3)))
    for data, expected in (
        (base, picture), (transform(base, red), red(picture)), (normalized, red(picture)), (samples, plain),
        (AugmentedImageDatastore((168, 168), base, policy=RandAugment()), None),
    ):  # fmt: skip
        sheet = preview(data, [1], draws=1, seed=5, epoch=1)
        assert shows(sheet, plain), "the original"
        assert expected is None or shows(sheet, expected)
    other = [{"picture": photo(168, 168, 1)}] * 2
    assert shows(preview(transform(other, as_floats, field=None), [1]), photo(168, 168, 1))
    with pytest.raises(FieldError, match=r"sample 0 of list has no image to show: its fields are \['picture'\]"):
        preview(other)
    with pytest.raises(ShapeError, match=r"only \(H, W\) and \(H, W, C\) can be shown"):
        preview([{"image": np.zeros((2, 8, 8, 3), np.uint8)}])


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.array([[0.0, 0.5, 1.0]]), [0, 128, 255]), (np.array([[False, True, True]]), [0, 255, 255]),
        (np.array([[0, 7, 255]], np.int64), [0, 7, 255]), (np.array([[0, 500, 1000]], np.uint16), [0, 128, 255]),
        (np.array([[-1.0, np.nan, 1.0]]), [0, 128, 255]), (np.array([[5.0, 5.0, 5.0]]), [0, 0, 0]),
    ],
)  # fmt: skip
def test_values_of_any_type_can_be_seen(values: np.ndarray, shown: list[int]) -> None:
    assert _as_bytes(values).tolist() == [shown]


def test_of_large_originals_only_what_is_shown_is_kept() -> None:
    class Large:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> dict[str, object]:
            return {"image": np.full((2000, 2000, 3), index, np.uint8)}

    data = AugmentedImageDatastore((32, 32), Large())
    preview(data, [0])  # what is imported and drawn once
    tracemalloc.start()
    try:
        preview(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 12_000_000, "at most a few of the eight pictures of 12 MB at once"


@pytest.mark.parametrize(("kind", "limit"), [("webp", 16383), ("jpg", 65500)])
def test_a_sheet_that_is_too_large_for_its_file_is_refused(
    pictures: Path, kind: str, limit: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["view", str(pictures / "images"), "-o", str(tmp_path / f"big.{kind}"), "--size", "8", "--samples", "1"]
    assert main([*words, "--draws", str(limit // 170)]) == 1
    assert f"files have at most {limit} a side: show fewer draws or samples, or write a .png" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["new\nline", "tab\t", "\x1b[31m", "\u202eright", "\udcff", " ", "x" * 200])
def test_files_and_classes_of_any_name_are_shown(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / "images" / "class" / f"{name}.png", tmp_path / "images" / name / "picture.png"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            Image.fromarray(photo(8, 9)).save(file, "PNG")
    assert main(["view", str(tmp_path / "images"), "-o", str(tmp_path / "sheet.png")]) == 0


def test_the_help_keeps_examples_whole() -> None:
    for columns in ("40", "80", "132"):
        command = [sys.executable, "-m", "headrace.tools.cli", "view", "--help"]
        environment = {**os.environ, "COLUMNS": columns}
        found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert "rotation=-10:10,x_reflection,scale=0.9:1.1,fill_value=128" in found.stdout


def test_label_maps_are_laid_over() -> None:
    mask = np.zeros((60, 80), np.uint8)
    mask[:, :40] = 1
    samples = [{"image": np.full((60, 80), 100, np.uint8), "mask": mask, "label": 3}]
    sheet = np.asarray(preview(AugmentedImageDatastore((80, 80), samples, masks=["mask"]), draws=1, tile=80))
    assert (sheet == (165, 92, 80)).all(2).sum() == 40 * 60 + 40 * 80
    assert (sheet == 100).all(2).sum() >= 40 * 60 + 40 * 80


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x_reflection", ImageAugmenter(x_reflection=True)),
        ("x_reflection=0.25, y_reflection", ImageAugmenter(x_reflection=0.25, y_reflection=True)),
        ("rotation=-10:10,scale=.9:1.1", ImageAugmenter(rotation=(-10, 10), scale=(0.9, 1.1))),
        ("rotation=5,fill_value=128", ImageAugmenter(rotation=5, fill_value=128)),
        ("fill_value=1/2/3,x_shear=-3.5", ImageAugmenter(fill_value=(1, 2, 3), x_shear=-3.5)),
    ],
)
def test_an_augmenter_as_text(text: str, expected: ImageAugmenter) -> None:
    assert parse_augmenter(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no setting of ImageAugmenter: it has fill_value, x_reflection"),
        ("rotate=5", "'rotate' is no setting of ImageAugmenter"),
        ("rotation", "rotation='' is not understood: write rotation=5 or rotation=-5:5"),
        ("rotation=5deg", "rotation='5deg' is not understood"),
        ("rotation=1:2:3", "is not understood"),
        ("rotation=nan", "is not understood"),
        ("rotation=5,rotation=6", "rotation is given twice"),
        ("rotation=5:-5", "rotation must be a number"),
        ("scale=0", "scale must be a number"),
        ("fill_value=0:9", "write whole numbers: fill_value=128"),
        ("fill_value=300", "fill_value must be a whole number in 0 .. 255"),
        ("x_reflection=2", "x_reflection must be a number in 0 .. 1"),
    ],
)
def test_augmenters_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_augmenter(text)
    assert message in str(caught.value)


def test_samples_that_do_not_exist_are_named(pictures: Path) -> None:
    data = AugmentedImageDatastore((8, 8), ImageDatastore(pictures / "images"))
    with pytest.raises(ConfigError, match=r"cannot show 3 draws of samples \[12, -1\]: there are samples 0 \.\. 11"):
        preview(data, [3, 12, -1])
    with pytest.raises(ConfigError, match="0 draws"):
        preview(data, [3], draws=0)
    with pytest.raises(ConfigError, match="cannot show"):
        preview(data, [])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-o", "x.png", "--augment", "rotat=3"], 2, "argument --augment: 'rotat' is no setting"),
        (["-o", "x.gif"], 2, "'x.gif' must end in .png, .jpg"),
        (["-o", "x.png", "--size", "0x9"], 2, "is no size: write 224 or 224x320"),
        (["-o", "x.png", "--ids", "a"], 2, "is no list of sample ids"),
        (["-o", "x.png", "--ids", "1", "--samples", "2"], 2, "not allowed with"),
        (["-o", "x.png", "--draws", "0"], 2, "is no whole number in 1"),
        (["-o", "x.png", "--epoch", "-1"], 2, "epoch"),
        ([], 2, "required: -o"),
        (["-o", "x.png", "--ids", "99"], 1, "headrace view: cannot show 3 draws of samples [99]"),
        (["-o", "x.png", "--mode", "random_crop"], 1, "does not fit into an image of 60 x 80"),
        (["-o", "absent/x.png"], 1, "check the path"),
    ],
)
def test_wrong_words_say_why(pictures: Path, tmp_path: Path, words: list[str], code: int, message: str) -> None:
    command = [sys.executable, "-m", "headrace.tools.cli", "view", str(pictures / "shards"), *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == code, found.stderr
    assert message in found.stderr
    assert "Traceback" not in found.stderr
    assert not list(tmp_path.iterdir())
