"""A contact sheet: originals above what a model sees of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ..errors import ConfigError

__all__ = ["Column", "contact_sheet"]

_PAPER, _INK, _FAINT = (250, 250, 248), (40, 40, 44), (130, 130, 136)
_GAP = 6
_LINE = 16


@dataclass(frozen=True, slots=True)
class Column:
    """One sample of a contact sheet.

    Args:
        title: written above it, for example its label.
        original: uint8 (H, W, C) with 1 or 3 channels, as stored.
        draws: uint8 (h, w, C) each, as the model sees it.
    """

    title: str
    original: NDArray[np.uint8]
    draws: Sequence[NDArray[np.uint8]]


def contact_sheet(columns: Sequence[Column], *, tile: int = 112, caption: str = "") -> Image.Image:
    """Lay out samples side by side, each with its original on top and its draws below.

    Args:
        columns: at least one; all with the same number of draws.
        tile: pixels of the square that each picture is fitted into; small pictures are enlarged without smoothing, so
            that each of their pixels can be seen.
        caption: one line below everything.

    Returns:
        An RGB image.

    Raises:
        ConfigError: there are no columns, or they differ in their number of draws.
    """
    rows = {len(column.draws) for column in columns}
    if len(rows) != 1:
        raise ConfigError(f"a contact sheet needs columns with equally many draws, got {sorted(rows) or 'no columns'}")
    step = tile + _GAP
    margin = 8 * _LINE // 2
    size = (margin + len(columns) * step + _GAP, _LINE + _GAP + (1 + rows.pop()) * step + 2 * _GAP + _LINE)
    sheet = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for number, column in enumerate(columns):
        left = margin + number * step
        pen.text((left + tile // 2, _GAP), _shortened(column.title, tile, pen, font), _INK, font, anchor="ma")
        for row, picture in enumerate((column.original, *column.draws)):
            top = _LINE + _GAP + row * step + (2 * _GAP if row else 0)  # a wider gap below the originals
            fitted = _fitted(picture, tile)
            sheet.paste(fitted, (left + (tile - fitted.width) // 2, top + (tile - fitted.height) // 2))
    for row in range(1 + len(columns[0].draws)):
        top = _LINE + _GAP + row * step + (2 * _GAP if row else 0)
        name = "original" if row == 0 else f"draw {row}"
        pen.text((margin - _GAP, top + tile // 2), name, _FAINT, font, anchor="rm")
    pen.text((margin, size[1] - _LINE), caption, _FAINT, font)
    return sheet


def _fitted(picture: NDArray[np.uint8], tile: int) -> Image.Image:
    image = Image.fromarray(picture.squeeze(2) if picture.shape[2] == 1 else picture).convert("RGB")
    scale = tile / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)


def _shortened(
    text: str, width: int, pen: ImageDraw.ImageDraw, font: ImageFont.ImageFont | ImageFont.FreeTypeFont
) -> str:
    while len(text) > 1 and pen.textlength(text, font) > width:
        text = text[:-2] + "…"
    return text
