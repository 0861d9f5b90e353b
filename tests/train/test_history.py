import csv
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, DestinationError, MissingDataError
from headrace.train.history import History, Row

ROW = Row(step=1, epoch=0, loss=0.5, images_per_second=9.0, wait_share=0.0, lr=0.1)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@given(loss=st.floats(), speed=st.floats(0, 1e9), value=st.none() | st.floats())
def test_numbers_read_back_as_the_same_doubles(
    tmp_path_factory: pytest.TempPathFactory, loss: float, speed: float, value: float | None
) -> None:
    path = tmp_path_factory.mktemp("history") / "run.csv"
    validation = {} if value is None else {"loss": value}
    row = Row(step=3, epoch=1, loss=loss, images_per_second=speed, wait_share=0.25, lr=1e-3, validation=validation)
    with History(path, ["loss", "accuracy"]) as history:
        history.append(row)
    (read,) = _read(path)
    assert list(read) == ["step", "epoch", "loss", "images_per_second", "wait_share", "lr", "val_loss", "val_accuracy"]
    expected = [3, 1, loss, speed, 0.25, 1e-3]
    for text, number in zip(list(read.values())[:6], expected, strict=True):
        assert float(text) == number or (math.isnan(float(text)) and math.isnan(number))
    assert read["val_accuracy"] == ""
    assert read["val_loss"] == ("" if value is None else repr(value))


def test_each_row_can_be_read_at_once(tmp_path: Path) -> None:
    with History(tmp_path / "run.csv") as history:
        for done in range(1, 4):
            history.append(ROW)
            assert len(_read(tmp_path / "run.csv")) == done
    assert len(history) == 3
    assert history[-1] is ROW
    assert list(history) == [ROW] * 3


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("precious")
    with pytest.raises(DestinationError, match=r"run\.csv exists already"), History(tmp_path / "run.csv"):
        pass
    assert (tmp_path / "run.csv").read_text() == "precious"


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"folder of .*gone/run\.csv does not exist"):
        History(tmp_path / "gone" / "run.csv").__enter__()
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(ConfigError, match="cannot be written"):
            History(tmp_path / name).__enter__()


@contextmanager
def _full_disk(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond ``size`` bytes: the last write is cut short, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_stops_nothing_and_rows_are_written_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    with History(path) as history:
        history.append(ROW)
        whole = path.read_bytes()
        with _full_disk(len(whole) + 5):
            with pytest.warns(
                RuntimeWarning, match=r"1 rows of the history cannot be written to .*run\.csv \(File too"
            ):
                history.append(ROW)
            assert path.read_bytes() == whole
            history.append(ROW)  # has been said
            assert path.read_bytes() == whole
        history.append(ROW)
        assert len(_read(path)) == len(history) == 4


def test_rows_that_never_found_room_are_counted_at_the_end(tmp_path: Path) -> None:
    history = History(tmp_path / "run.csv")
    with history:
        history.append(ROW)
        room = (tmp_path / "run.csv").stat().st_size
    with History(tmp_path / "other.csv") as history:
        history.append(ROW)
        with _full_disk(room):
            with pytest.warns(RuntimeWarning, match="training goes on"):
                history.append(ROW)
            history.append(ROW)
            with pytest.warns(RuntimeWarning, match="2 rows .* they are lost"):
                history.__exit__(None, None, None)
    assert len(_read(tmp_path / "other.csv")) == 1


def test_a_disk_that_is_full_from_the_start_is_an_error(tmp_path: Path) -> None:
    with _full_disk(10), pytest.raises(ConfigError, match="cannot be written"):
        History(tmp_path / "run.csv").__enter__()
    assert list(tmp_path.iterdir()) == []


def test_only_its_own_file_is_ever_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "run.csv").write_text("another run's")
    monkeypatch.chdir(tmp_path)
    with History("run.csv"):
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    with History("new.csv"):
        Path("new.csv").rename("mine.csv")
        Path("new.csv").write_text("a user's")
    assert Path("new.csv").read_text() == "a user's"
    assert Path("run.csv").read_text() == "another run's"


def test_a_run_without_rows_leaves_no_file(tmp_path: Path) -> None:
    with History(tmp_path / "run.csv"):
        assert (tmp_path / "run.csv").exists()
    assert not (tmp_path / "run.csv").exists()


def test_a_value_without_a_column_is_refused() -> None:
    with pytest.raises(ConfigError, match="surprise"), History() as history:
        history.append(Row(step=1, epoch=0, loss=0.0, images_per_second=0.0, wait_share=0.0, lr=0.0,
                           validation={"surprise": 1.0}))  # fmt: skip
