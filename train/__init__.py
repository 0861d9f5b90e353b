"""A thin trainer over batches: it owns no data logic."""

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .config import TrainConfig
    from .evaluate import evaluate
    from .loop import fit
    from .run import Run

__all__ = ["Run", "TrainConfig", "evaluate", "fit"]

__getattr__ = lazy_exports(__name__, {"Run": "run", "TrainConfig": "config", "evaluate": "evaluate", "fit": "loop"})
