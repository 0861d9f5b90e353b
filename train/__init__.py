"""A thin trainer over batches: it owns no data logic."""

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .config import TrainConfig
    from .evaluation import evaluate
    from .fingerprint import weights_sha256
    from .loop import FitResult, fit
    from .metrics import Accuracy
    from .prepare import normalized_images
    from .run import Run

__all__ = [
    "Accuracy",
    "FitResult",
    "Run",
    "TrainConfig",
    "evaluate",
    "fit",
    "normalized_images",
    "weights_sha256",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Accuracy": "metrics",
        "FitResult": "loop",
        "Run": "run",
        "TrainConfig": "config",
        "evaluate": "evaluation",
        "fit": "loop",
        "normalized_images": "prepare",
        "weights_sha256": "fingerprint",
    },
)
