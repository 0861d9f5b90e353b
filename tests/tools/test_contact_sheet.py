"""Contact sheets: everything is where it belongs."""

import numpy as np
import pytest

from headrace.errors import ConfigError, ShapeError
from headrace.tools.contact_sheet import Column, contact_sheet, overlaid, shrunk

SHAPES = [(300, 200, 3), (50, 700, 1), (40, 40, 3), (41, 3, 1), (900, 1, 3), (5, 7, 3)]
RED, GREEN = np.array([255, 0, 0], np.uint8), np.array([0, 255, 0], np.uint8)


def test_originals_lie_above_their_draws() -> None:
    column = Column(
        "a title that is far too long for its tile", np.full((2, 4, 3), RED), [np.full((4, 4, 3), GREEN)] * 2
    )
    sheet = np.asarray(contact_sheet([column, column], tile=40, caption="x")).astype(int)
    red = np.argwhere((sheet == RED).all(2))
    green = np.argwhere((sheet == GREEN).all(2))
    assert len(red) == 2 * 40 * 20, "the original keeps its aspect"
    assert len(green) == 4 * 40 * 40
    assert red[:, 0].max() < green[:, 0].min()


def test_gray_pictures_are_shown_gray() -> None:
    sheet = np.asarray(contact_sheet([Column("g", np.full((2, 2, 1), 99, np.uint8), [])], tile=30))
    assert ((sheet == 99).all(2)).sum() == 900


@pytest.mark.parametrize("draws", [[], [0, 1]])
def test_columns_must_agree(draws: list[int]) -> None:
    picture = np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(ConfigError, match="equally many draws"):
        contact_sheet([Column("a", picture, [picture] * number) for number in draws])


def test_long_sheets_go_on_in_bands_and_flat_pictures_take_no_more_room_than_they_need() -> None:
    columns = [Column("t", np.full((2, 4, 3), RED), [np.full((2, 4, 3), GREEN)], "key")] * 5
    wide = contact_sheet(columns, tile=40)
    narrow = np.asarray(contact_sheet(columns, tile=40, per_band=2)).astype(int)
    assert narrow.shape[1] < wide.width
    assert ((narrow == RED).all(2)).sum() == 5 * 40 * 20
    rows = np.flatnonzero((narrow == RED).all(2).any(1))
    assert (np.diff(rows) > 1).sum() == 2, "three bands"
    tall = contact_sheet([Column("t", np.full((4, 4, 3), RED), [np.full((4, 4, 3), GREEN)], "key")], tile=40)
    assert tall.height - wide.height == 40


def test_labels_are_laid_over_and_background_and_ignored_stay() -> None:
    picture = np.full((1, 4, 1), 100, np.uint8)
    found = overlaid(picture, np.array([[0, 1, 9, 255]]))
    assert found[0, 0].tolist() == found[0, 3].tolist() == [100, 100, 100]
    assert found[0, 1].tolist() == found[0, 2].tolist() == [165, 92, 80]
    with pytest.raises(ShapeError, match="needs the same size"):
        overlaid(picture, np.zeros((2, 2), np.uint8))


def test_shrunk_pictures_are_shown_as_whole_ones_are() -> None:
    pictures = [np.arange(h * w * c, dtype=np.uint32).astype(np.uint8).reshape(h, w, c) for h, w, c in SHAPES]
    for whole in pictures:
        small = shrunk(whole, 40)
        assert max(small.shape[:2]) <= 40
        assert (small is whole) == (max(whole.shape[:2]) <= 40)
        sheets = [contact_sheet([Column("t", picture, [])], tile=40) for picture in (whole, small)]
        assert sheets[0].tobytes() == sheets[1].tobytes()


def test_a_sheet_that_no_memory_holds_is_refused() -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(ConfigError, match=r"a sheet of 8 samples with 20000 draws each would be .* pixels, more than"):
        contact_sheet([Column("t", picture, [picture] * 20_000)] * 8)
