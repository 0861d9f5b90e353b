"""Folders of images: which files count, in which order, with which labels."""

import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from archives import image_folder, jpeg
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode, photo

from headrace.datastores.datastore import EncodedImage
from headrace.datastores.image import ImageDatastore
from headrace.datastores.listing import IMAGE_EXTENSIONS, extension, natural_key
from headrace.errors import ConfigError, DecodeError, MissingDataError, SampleError


def keys(images: ImageDatastore) -> list[str]:
    return [images.key(index) for index in range(len(images))]


def everything(images: ImageDatastore) -> list[EncodedImage]:
    return images.encoded(np.arange(len(images)))


# -- what is found -----------------------------------------------------------------------------------------------------


def test_class_folders_become_labels_and_bytes_are_read_as_they_are(tmp_path: Path) -> None:
    files = image_folder(tmp_path, {"dog": 2, "cat": 3, "10": 1, "2": 1})
    images = ImageDatastore(tmp_path)
    assert images.classes == ("2", "10", "cat", "dog")
    assert keys(images) == ["2/000.jpg", "10/000.jpg", "cat/000.jpg", "cat/001.jpg", "cat/002.jpg", *list(files)[:2]]
    assert images.labels.tolist() == [0, 1, 2, 2, 2, 3, 3]
    assert images.labels.dtype == np.int64
    expected = [EncodedImage(files[key], label) for key, label in zip(keys(images), images.labels, strict=True)]
    assert everything(images) == expected
    assert images.encoded(np.array([6, 0, 6])) == [expected[6], expected[0], expected[6]]
    assert images.count_each_label() == {"2": 1, "10": 1, "cat": 3, "dog": 2}
    assert images.root == str(tmp_path)
    assert images.locate(0) == str(tmp_path / "2/000.jpg")


def test_a_sample_is_pixels_label_and_key(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.png").write_bytes(encode(photo(9, 12)))
    sample = ImageDatastore(tmp_path)[0]
    assert sample["key"] == "cat/1.png"
    assert sample["label"] == 0
    assert np.array_equal(sample["image"], photo(9, 12))
    flat = ImageDatastore(tmp_path / "cat")[0]
    assert sorted(flat) == ["image", "key"]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    image_folder(tmp_path, {"": 3})
    images = ImageDatastore(str(tmp_path))
    assert (len(images), images.has_labels, images.classes) == (3, False, ())
    assert [image.label for image in everything(images)] == [None] * 3
    with pytest.raises(ConfigError, match="have no labels"):
        images.labels  # noqa: B018
    named = ImageDatastore(tmp_path, label_source="foldernames")
    assert named.classes == (tmp_path.name,)


def test_images_beside_class_folders_are_an_error_unless_the_labels_are_chosen(tmp_path: Path) -> None:
    image_folder(tmp_path, {"": 1, "cat": 2})
    with pytest.raises(ConfigError, match=r"000\.jpg\) and in sub-folders \(cat\)"):
        ImageDatastore(tmp_path)
    assert ImageDatastore(tmp_path, label_source="foldernames").classes == tuple(sorted([tmp_path.name, "cat"]))
    assert not ImageDatastore(tmp_path, label_source=None).has_labels
    assert len(ImageDatastore(tmp_path, include_subfolders=False)) == 1


def test_the_class_is_the_folder_that_the_image_lies_in(tmp_path: Path) -> None:
    image_folder(tmp_path, {"2024/cat": 1, "2024/dog": 1, "2025/cat": 1})
    images = ImageDatastore(tmp_path)
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 1, 0]


def test_lists_of_folders_and_files(tmp_path: Path) -> None:
    image_folder(tmp_path, {"b": 2, "a": 2, "c/d": 1})
    images = ImageDatastore([tmp_path / "b", f"file://{tmp_path}/a"], label_source="foldernames")
    assert keys(images) == ["b/000.jpg", "b/001.jpg", "a/000.jpg", "a/001.jpg"]
    assert images.classes == ("a", "b")
    assert not ImageDatastore([tmp_path / "b", tmp_path / "a"]).has_labels
    files = ImageDatastore([tmp_path / "b/001.jpg", tmp_path / "b/000.jpg", tmp_path / "c/d/000.jpg"])
    assert keys(files) == ["b/001.jpg", "b/000.jpg", "c/d/000.jpg"]
    assert keys(ImageDatastore(tmp_path / "b/001.jpg")) == ["001.jpg"]
    overlapping = ImageDatastore([tmp_path / "c/d", tmp_path / "c"])
    assert keys(overlapping) == ["d/000.jpg"], "a folder is taken once"


def test_a_relative_location_survives_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image_folder(tmp_path, {"x": 1})
    monkeypatch.chdir(tmp_path)
    images = ImageDatastore("x")
    monkeypatch.chdir("/")
    assert everything(images) == [EncodedImage(jpeg(0), None)]


def test_what_is_passed_over_is_counted(tmp_path: Path) -> None:
    image_folder(tmp_path, {"cat": 1, ".ipynb_checkpoints": 1, "__MACOSX": 1, "cat/.git": 2})
    for name in ("._000.jpg", ".DS_Store", "Thumbs.db", "notes.txt", "noextension"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    (tmp_path / "cat/empty.jpg").touch()
    (tmp_path / "cat/nowhere.jpg").symlink_to("absent.jpg")
    (tmp_path / "cat/itself.jpg").symlink_to("itself.jpg")
    os.mkfifo(tmp_path / "cat/pipe.jpg")
    (tmp_path / "cat/folder.jpg").mkdir()
    images = ImageDatastore(tmp_path)
    assert keys(images) == ["cat/000.jpg"]
    assert images.skipped == {
        "hidden file or folder": 5,
        "other extension": 3,
        "empty file": 1,
        "broken link, or no regular file": 3,
    }
    assert images.empty_files == ("cat/empty.jpg",)


def test_lost_images_show_in_the_repr(tmp_path: Path) -> None:
    image_folder(tmp_path, {"cat": 1})
    (tmp_path / ".hidden").touch()
    (tmp_path / "cat/notes.txt").write_bytes(b"x")
    assert repr(ImageDatastore(tmp_path)) == "<ImageDatastore of 1 image, 1 class>"
    (tmp_path / "cat/empty.jpg").touch()
    assert repr(ImageDatastore(tmp_path)) == "<ImageDatastore of 1 image, 1 class; 1 empty or broken file passed over>"
    (tmp_path / "cat/link.jpg").symlink_to("nowhere")
    images = ImageDatastore(tmp_path)
    assert repr(images).endswith("1 class; 2 empty or broken files passed over>")
    assert images.skipped["empty file"] == 1


def test_files_by_name_are_images_by_name_or_content(tmp_path: Path) -> None:
    image_folder(tmp_path, {"": 1})
    code, photo = tmp_path / "five.py", tmp_path / "photo.download"
    code.write_text("import headrace\n")
    photo.write_bytes(jpeg(3))
    assert keys(ImageDatastore([photo, tmp_path / "000.jpg"])) == ["photo.download", "000.jpg"]
    for location in (code, [photo, code]):
        with pytest.raises(ConfigError, match=r"five.py is no image: it begins with b'import headr', and its name"):
            ImageDatastore(location)
    assert keys(ImageDatastore(code, file_extensions=["py"])) == ["five.py"], "whoever says so gets it"
    (tmp_path / "empty.jpg").touch()
    images = ImageDatastore([tmp_path / "000.jpg", tmp_path / "empty.jpg"])
    assert (keys(images), images.empty_files) == (["000.jpg"], ("empty.jpg",))
    with pytest.raises(MissingDataError, match="empty file: 1"):
        ImageDatastore(tmp_path / "empty.jpg")


def test_classes_that_are_given_keep_their_numbers(tmp_path: Path) -> None:
    image_folder(tmp_path / "train", {"ant": 1, "bee": 1, "cow": 2})
    image_folder(tmp_path / "validation", {"cow": 1, "ant": 1})
    train = ImageDatastore(tmp_path / "train")
    validation = ImageDatastore(tmp_path / "validation", classes=train.classes)
    assert validation.classes == train.classes
    assert [(validation.key(i)[:3], validation.labels[i]) for i in range(2)] == [("ant", 0), ("cow", 2)]
    assert validation.count_each_label() == {"ant": 1, "bee": 0, "cow": 1}
    assert validation.fingerprint != ImageDatastore(tmp_path / "validation").fingerprint
    parts = [tmp_path / "validation/cow", tmp_path / "validation/ant"]
    assert ImageDatastore(parts, classes=["cow", "bee", "ant"]).labels.tolist() == [0, 2]
    with pytest.raises(ConfigError, match=r"folders that are no classes \(bee, cow\): there are ant;"):
        ImageDatastore(tmp_path / "train", classes=["ant"])


@pytest.mark.parametrize("classes", ["cat", [], ["cat", "cat"], ["cat", 3], [""], 7])
def test_classes_that_are_no_list_of_names(tmp_path: Path, classes) -> None:
    image_folder(tmp_path, {"cat": 1})
    with pytest.raises(ConfigError, match="classes must be a list of different names"):
        ImageDatastore(tmp_path, classes=classes)
    with pytest.raises(ConfigError, match=r"label_source=None \(--labels none\) asks for none"):
        ImageDatastore(tmp_path, classes=["cat"], label_source=None)


def test_extensions_are_compared_without_case(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.Jpeg", "c.tif", "d.jpg.bak", "e.v2.png"):
        (tmp_path / name).write_bytes(b"x")
    assert keys(ImageDatastore(tmp_path)) == ["a.JPG", "b.Jpeg", "c.tif", "e.v2.png"]
    assert keys(ImageDatastore(tmp_path, file_extensions=[".TIF", "bak"])) == ["c.tif", "d.jpg.bak"]


def test_links_are_followed_once_and_loops_end(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    image_folder(outside, {"": 2})
    image_folder(root, {"zebra": 1})
    (root / "linked").symlink_to(outside)
    (root / "again").symlink_to(root / "zebra")
    (root / "zebra/loop").symlink_to(root)
    (root / "zebra/file.jpg").symlink_to(outside / "001.jpg")
    images = ImageDatastore(root)
    assert keys(images) == ["linked/000.jpg", "linked/001.jpg", "zebra/000.jpg", "zebra/file.jpg"]
    assert images.skipped == {"folder that is met again": 2}


def test_names_of_any_bytes(tmp_path: Path) -> None:
    names = [os.fsdecode(b"caf\xe9 \xff.jpg"), "ü ñ.jpg", "new\nline.jpg", "per%20cent.jpg"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode("utf-8", "surrogateescape"))
    images = ImageDatastore(tmp_path)
    assert sorted(keys(images)) == sorted(names)
    assert {image.data for image in everything(images)} == {n.encode("utf-8", "surrogateescape") for n in names}
    assert len(images.fingerprint) == 64


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"absent.*check the path"):
        ImageDatastore(tmp_path / "absent")
    with pytest.raises(MissingDataError, match=r"no images in .*looked for jpg.*found nothing"):
        ImageDatastore(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"x")
    (tmp_path / "b.jpg").touch()
    with pytest.raises(MissingDataError, match=r"empty file: 1, other extension: 1"):
        ImageDatastore(tmp_path)


def test_arguments_that_cannot_work(tmp_path: Path) -> None:
    image_folder(tmp_path, {"": 1})
    with pytest.raises(ConfigError, match="label_source must be"):
        ImageDatastore(tmp_path, label_source="csv")
    with pytest.raises(ConfigError, match="not local"):
        ImageDatastore("s3://bucket/images")
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        ImageDatastore("/dev/null")


@pytest.mark.parametrize("index", [-1, 2, 10**12])
def test_numbers_out_of_range(tmp_path: Path, index: int) -> None:
    image_folder(tmp_path, {"": 2})
    with pytest.raises(IndexError, match=r"0 \.\. 1"):
        ImageDatastore(tmp_path)[index]


def test_files_that_are_gone_or_unreadable_or_no_images(tmp_path: Path) -> None:
    image_folder(tmp_path, {"": 3})
    images = ImageDatastore(tmp_path)
    (tmp_path / "000.jpg").unlink()
    (tmp_path / "001.jpg").unlink()
    (tmp_path / "001.jpg").mkdir()
    (tmp_path / "002.jpg").write_bytes(b"<html>")
    with pytest.raises(MissingDataError, match=r"000\.jpg"):
        images.encoded(np.array([0]))
    with pytest.raises(MissingDataError, match=r"001\.jpg: expected a file, found a folder or a device"):
        images.encoded(np.array([1]))
    with pytest.raises(DecodeError, match=r"002\.jpg"):
        images[2]


@pytest.mark.timeout(10)
def test_a_named_pipe_in_the_place_of_an_image_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    image_folder(tmp_path, {"": 1})
    images = ImageDatastore(tmp_path)
    (tmp_path / "000.jpg").unlink()
    os.mkfifo(tmp_path / "000.jpg")
    with pytest.raises(MissingDataError, match=r"000\.jpg: expected a file"):
        images[0]


def test_a_file_as_large_as_no_image_is_not_read(tmp_path: Path) -> None:
    image_folder(tmp_path, {"": 1})
    os.truncate(tmp_path / "000.jpg", 2**40)
    with pytest.raises(SampleError, match=r"000\.jpg has 1099511627776 bytes: one sample may have 1073741824"):
        ImageDatastore(tmp_path)[0]


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_the_fingerprint_follows_paths_and_sizes(tmp_path: Path) -> None:
    prints = []
    for number, (name, data) in enumerate(
        [("a/1.jpg", b"x"), ("a/1.jpg", b"y"), ("a/2.jpg", b"x"), ("a/1.jpg", b"xx")]
    ):
        path = tmp_path / str(number) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        prints.append(ImageDatastore(tmp_path / str(number)).fingerprint)
    assert prints[0] == prints[1], "the root and the contents play no part"
    assert len(set(prints)) == 3
    assert ImageDatastore(tmp_path / "0", label_source=None).fingerprint not in prints


def test_a_pickled_datastore_reads_the_same(tmp_path: Path) -> None:
    image_folder(tmp_path, {"a": 2, "b": 2})
    images = ImageDatastore(tmp_path)
    again = pickle.loads(pickle.dumps(images))
    assert everything(again) == everything(images)
    assert again.fingerprint == images.fingerprint


def test_names_are_kept_compactly(tmp_path: Path) -> None:
    for folder in range(4):
        (tmp_path / str(folder)).mkdir()
        for number in range(1000):
            (tmp_path / str(folder) / f"image_{number:06d}.jpg").write_bytes(b"x")
    ImageDatastore(tmp_path)  # what is made once only
    tracemalloc.start()
    images = ImageDatastore(tmp_path)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4000 * 50, f"{kept / 4000:.0f} bytes a file"
    assert len(pickle.dumps(images)) < 4000 * 50


@pytest.fixture
def uneven(tmp_path: Path) -> ImageDatastore:
    image_folder(tmp_path, {"a": 10, "b": 5, "c": 4})
    return ImageDatastore(tmp_path)


def counts(parts: list[ImageDatastore]) -> list[dict[str, int]]:
    return [part.count_each_label() for part in parts]


def test_split_by_shares(uneven: ImageDatastore) -> None:
    parts = uneven.split_each_label(0.6, 0.2)
    assert counts(parts) == [{"a": 6, "b": 3, "c": 2}, {"a": 2, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}]
    assert keys(parts[0])[:6] == [f"a/{number:03d}.jpg" for number in range(6)], "the first files go first"
    assert sorted(key for part in parts for key in keys(part)) == sorted(keys(uneven))
    assert [part.classes for part in parts] == [uneven.classes] * 3
    assert everything(parts[1])[0] == everything(uneven)[6]


def test_split_by_counts(uneven: ImageDatastore) -> None:
    assert counts(uneven.split_each_label(3, 1)) == [
        {"a": 3, "b": 3, "c": 3},
        {"a": 1, "b": 1, "c": 1},
        {"a": 6, "b": 1, "c": 0},
    ]
    with pytest.raises(ConfigError, match="'c' has only 4"):
        uneven.split_each_label(3, 2)


def test_split_of_some_classes_keeps_their_numbers(uneven: ImageDatastore) -> None:
    parts = uneven.split_each_label(0.5, include=["c", "b"])
    assert counts(parts) == [{"a": 0, "b": 3, "c": 2}, {"a": 0, "b": 2, "c": 2}]
    assert set(parts[0].labels.tolist()) == {1, 2}
    assert counts(uneven.split_each_label(0.5, exclude=["a"])) == counts(parts)


def test_a_random_split_depends_on_the_seed_only(uneven: ImageDatastore) -> None:
    first, again, other = (
        list(map(keys, uneven.split_each_label(0.5, randomized=True, seed=seed))) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert first != list(map(keys, uneven.split_each_label(0.5)))
    assert sorted(first[0] + first[1]) == sorted(keys(uneven))
    golden = "a/002 a/004 a/005 a/006 a/009 b/000 b/002 b/003 c/000 c/002"
    assert first[0] == [f"{name}.jpg" for name in golden.split()], "splits must never change silently"


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4).filter(lambda parts: sum(parts) <= 1))
def test_shares_are_exact_to_one_image(parts: list[float]) -> None:
    images = object.__new__(ImageDatastore)
    ends = images._boundaries(tuple(parts), 1000, 0)
    assert ends == sorted(ends)
    assert all(abs(end - 1000 * share) <= 0.5 + 1e-6 for end, share in zip(ends, np.cumsum(parts), strict=True))
    assert ends[-1] <= 1000


@pytest.mark.parametrize("parts", [(), (0.5, 0.6), (0.0,), (1.0,), (-1,), (0,), (0.5, 2), (2.5,)])
def test_parts_that_cannot_work(uneven: ImageDatastore, parts: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="parts must be shares"):
        uneven.split_each_label(*parts)


def test_classes_that_cannot_be_split(uneven: ImageDatastore) -> None:
    for options in ({"include": ["x"]}, {"exclude": ["x"]}, {"include": []}, {"exclude": ["a", "b", "c"]}):
        with pytest.raises(ConfigError, match="no class is left, or some are unknown"):
            uneven.split_each_label(0.5, **options)


@given(st.lists(st.text("ab019é", max_size=6)))
def test_natural_order_is_total_and_counts(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key), (
        "no two different names are equal in order"
    )
    assert natural_key("img9") < natural_key("img10") < natural_key("img10a")


def test_extensions() -> None:
    assert [extension(name) for name in ("a.JPG", "a.b.Png", "a", ".x", "a.")] == ["jpg", "png", "", "x", ""]
    assert len(set(IMAGE_EXTENSIONS)) == len(IMAGE_EXTENSIONS)


def test_links_are_followed_in_an_order_of_names(tmp_path: Path) -> None:
    for number, names in enumerate([("zebra", "apple"), ("apple", "zebra")]):
        outside, inside = tmp_path / f"outside{number}", tmp_path / f"inside{number}"
        image_folder(outside, {"": 2})
        inside.mkdir()
        for name in names:  # two names of one folder, made in either order
            (inside / name).symlink_to(outside)
        assert ImageDatastore(inside).classes == ("apple",)
