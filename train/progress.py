"""What a person sees of a run, on stderr."""

import os
import sys
from types import TracebackType
from typing import NoReturn, Self

from tqdm import tqdm

from .config import ProgressStyle
from .history import Row

__all__ = ["Progress"]

_FORMAT = "{percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


class Progress:
    """A bar, lines, or nothing; shown inside ``with``.

    Args:
        style: "bar" becomes "lines" where stderr is no terminal.
        total: steps there will be at most.
    """

    def __init__(self, style: ProgressStyle, total: int) -> None:
        on_terminal = sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
        self._style: ProgressStyle = "lines" if style == "bar" and not on_terminal else style
        self._done, self._total = 0, total
        self._bar: tqdm[NoReturn] | None = None

    def beginning_at(self, done: int) -> Self:
        """Return it, for a run that begins when ``done`` steps are done."""
        self._done = done
        return self

    def step(self) -> None:
        """A step was done."""
        if self._bar is not None:
            self._bar.update()

    def row(self, row: Row) -> None:
        """A row was added to the history."""
        values = [("loss", row.loss), *((f"val_{name}", value) for name, value in row.validation.items())]
        text = f"epoch {row.epoch} " + " ".join(f"{name} {value:.4g}" for name, value in values)
        text += f" {row.images_per_second:.0f} img/s wait {100 * row.wait_share:.1f} % lr {row.lr:.3g}"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
        elif self._style == "lines":
            sys.stderr.write(f"step {row.step}/{self._total} {text}\n")

    def say(self, text: str) -> None:
        """Show a line that stays."""
        if self._bar is not None:
            tqdm.write(text, file=sys.stderr)
        elif self._style == "lines":
            sys.stderr.write(f"{text}\n")

    def end(self, text: str) -> None:
        """Show the last line, below everything else."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            self._style = "lines"
        self.say(text)

    def __enter__(self) -> Self:
        if self._style == "bar":
            self._bar = tqdm(total=self._total, initial=self._done, unit="step", dynamic_ncols=True, bar_format=_FORMAT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
