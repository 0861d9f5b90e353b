"""A contact sheet: originals above what a model sees of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ..errors import ConfigError, ShapeError

__all__ = ["Column", "contact_sheet", "overlaid", "shrunk"]

_PAPER, _INK, _FAINT, _RULE = (250, 250, 248), (40, 40, 44), (130, 130, 136), (222, 222, 218)

#: Colors of labels 1, 2, 3 ...: strong ones that differ in brightness too; label 0 is background and stays bare.
_LABEL_COLORS = np.array(
    [(230, 85, 60), (50, 120, 200), (90, 170, 80), (240, 180, 40), (150, 90, 180), (40, 180, 180), (230, 120, 180),
     (120, 95, 70)],
    np.float64,
)  # fmt: skip
_STRENGTH = 0.5

_MAX_PIXELS = 2**28  # 800 MB


@dataclass(frozen=True, slots=True)
class Column:
    """One sample of a contact sheet.

    Args:
        title: written above it, for example its label.
        original: uint8 (H, W, C) with 1 or 3 channels, as stored.
        draws: uint8 (h, w, C) each, as the model sees it.
        subtitle: a second, fainter line, for example its key; of a long one the end is shown.
    """

    title: str
    original: NDArray[np.uint8]
    draws: Sequence[NDArray[np.uint8]]
    subtitle: str = ""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Measures in pixels; the first row of a band holds the originals, and a wider gap lies below it."""

    tile: int
    heights: tuple[int, ...]  # of the tallest picture in each row
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont
    line: int
    titles: int  # lines above the originals

    @property
    def gap(self) -> int:
        return max(6, self.tile // 20)

    @property
    def margin(self) -> int:
        return 4 * self.line

    @property
    def band(self) -> int:
        return self.row_top(len(self.heights)) + 2 * self.gap

    def row_top(self, row: int) -> int:
        above = sum(self.heights[:row]) + row * self.gap
        return self.titles * self.line + self.gap + above + (2 * self.gap if row else 0)

    def column_left(self, number: int) -> int:
        return self.margin + number * (self.tile + self.gap)


def contact_sheet(
    columns: Sequence[Column], *, tile: int = 112, caption: str = "", per_band: int | None = None
) -> Image.Image:
    """Lay out samples side by side, each with its original on top and its draws below.

    Args:
        columns: at least one; all with the same number of draws.
        tile: pixels of the square that each picture is fitted into; small pictures are enlarged without smoothing, so
            that each of their pixels can be seen.
        caption: one line below everything.
        per_band: how many columns stand side by side before a new band begins below; all by default.

    Returns:
        An RGB image.

    Raises:
        ConfigError: there are no columns, they differ in their number of draws, or the sheet would be too large.
    """
    rows = {len(column.draws) for column in columns}
    if len(rows) != 1:
        raise ConfigError(f"a contact sheet needs columns with equally many draws, got {sorted(rows) or 'no columns'}")
    font_size = max(11, tile // 13)
    titles = 2 if any(column.subtitle for column in columns) else 1
    heights = tuple(max(_fitted_size(p, tile)[1] for p in row) for row in zip(*map(_pictures, columns), strict=True))
    layout = _Layout(tile, heights, ImageFont.load_default(font_size), font_size * 3 // 2, titles)
    wide = min(per_band or len(columns), len(columns))
    bands = [columns[first : first + wide] for first in range(0, len(columns), wide)]
    size = (layout.column_left(wide) + layout.gap, layout.gap + len(bands) * layout.band + 2 * layout.line)
    if size[0] * size[1] > _MAX_PIXELS:
        raise ConfigError(
            f"a sheet of {len(columns)} samples with {len(columns[0].draws)} draws each would be {size[0]} x {size[1]} "
            f"pixels, more than {_MAX_PIXELS:,} in all: show fewer"
        )
    sheet = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(sheet)
    for number, band in enumerate(bands):
        top = layout.gap + number * layout.band
        if number:
            pen.line((layout.gap, top - layout.gap, size[0] - layout.gap, top - layout.gap), _RULE)
        _draw_band(sheet, pen, band, top, layout)
    pen.text((layout.margin, size[1] - layout.line * 3 // 2), caption, _FAINT, layout.font)
    return sheet


def _draw_band(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, columns: Sequence[Column], band_top: int, layout: _Layout
) -> None:
    tile, font = layout.tile, layout.font
    for number, column in enumerate(columns):
        left = layout.column_left(number)
        middle = left + tile // 2
        title = _shortened(_printable(column.title), tile, pen, font)
        pen.text((middle, band_top), title, _INK, font, anchor="ma")
        subtitle = _shortened(_printable(column.subtitle)[::-1], tile, pen, font)[::-1]  # keys differ in their ends
        pen.text((middle, band_top + layout.line), subtitle, _FAINT, font, anchor="ma")
        for row, picture in enumerate(_pictures(column)):
            fitted = _fitted(picture, tile)
            below = (layout.heights[row] - fitted.height) // 2
            sheet.paste(fitted, (left + (tile - fitted.width) // 2, band_top + layout.row_top(row) + below))
    for row, height in enumerate(layout.heights):
        name = "original" if row == 0 else f"draw {row}"
        place = (layout.margin - layout.gap, band_top + layout.row_top(row) + height // 2)
        pen.text(place, name, _FAINT, font, anchor="rm")


def overlaid(picture: NDArray[np.uint8], mask: NDArray[np.integer], ignored: int = 255) -> NDArray[np.uint8]:
    """Return a picture with its label map laid over it, a color per label.

    Args:
        picture: uint8 (H, W, C) with 1 or 3 channels.
        mask: whole numbers (H, W): 0 is background and stays as it is; colors repeat after 8 labels.
        ignored: a label that stays as it is too.

    Returns:
        uint8 (H, W, 3).

    Raises:
        ShapeError: a mask of another size.

    Example:
        >>> overlaid(np.zeros((1, 2, 1), np.uint8), np.array([[0, 1]])).tolist()
        [[[0, 0, 0], [115, 42, 30]]]
    """
    if mask.shape != picture.shape[:2]:
        raise ShapeError(f"a mask {mask.shape} cannot be laid over a picture {picture.shape}: it needs the same size")
    colored = np.array(np.broadcast_to(picture, (*mask.shape, 3)))
    marked = (mask != 0) & (mask != ignored)
    colors = _LABEL_COLORS[(mask[marked].astype(np.int64) - 1) % len(_LABEL_COLORS)]
    colored[marked] = (colored[marked] + _STRENGTH * (colors - colored[marked])).astype(np.uint8)
    return colored


def shrunk(picture: NDArray[np.uint8], tile: int) -> NDArray[np.uint8]:
    """Return what a tile shows of a picture, so that no more of it has to be kept; a small one stays as it is.

    Args:
        picture: uint8 (H, W, C) with 1 or 3 channels.
        tile: pixels of the square that it is fitted into.

    Example:
        >>> shrunk(np.zeros((300, 600, 1), np.uint8), 30).shape
        (15, 30, 3)
    """
    return picture if max(picture.shape[:2]) <= tile else np.asarray(_fitted(picture, tile))


def _pictures(column: Column) -> tuple[NDArray[np.uint8], ...]:
    return (column.original, *column.draws)


def _fitted_size(picture: NDArray[np.uint8], tile: int) -> tuple[int, int]:
    """Return width and height of a picture in a tile."""
    height, width = picture.shape[:2]
    scale = tile / max(height, width)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _fitted(picture: NDArray[np.uint8], tile: int) -> Image.Image:
    image = Image.fromarray(picture.squeeze(2) if picture.shape[2] == 1 else picture).convert("RGB")
    enlarged = tile > max(image.size)
    return image.resize(_fitted_size(picture, tile), Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS)


def _printable(text: str) -> str:
    """Return a text of one line, whatever a file may be called: what cannot be shown is written as Python writes it."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _shortened(
    text: str, width: int, pen: ImageDraw.ImageDraw, font: ImageFont.ImageFont | ImageFont.FreeTypeFont
) -> str:
    while len(text) > 1 and pen.textlength(text, font) > width:
        text = text[:-2] + "…"
    return text
