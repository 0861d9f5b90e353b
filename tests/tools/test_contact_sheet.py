"""Contact sheets: everything is where it belongs."""

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.tools.contact_sheet import Column, contact_sheet

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
