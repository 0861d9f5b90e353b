"""A thin trainer over batches: it owns no data logic."""

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .config import TrainConfig
    from .evaluation import evaluate
    from .fingerprint import weights_sha256
    from .loop import FitResult, fit
    from .metrics import Accuracy
    from .parameters import decay_groups
    from .prediction import Classes, Prediction, activations, classify, predict
    from .prepare import normalized_images
    from .run import Run
    from .schedule import Chain, Cosine, Cyclical, Exponential, Piecewise, Polynomial, Warmup, scaled_rate

__all__ = [
    "Accuracy",
    "Chain",
    "Classes",
    "Cosine",
    "Cyclical",
    "Exponential",
    "FitResult",
    "Piecewise",
    "Polynomial",
    "Prediction",
    "Run",
    "TrainConfig",
    "Warmup",
    "activations",
    "classify",
    "decay_groups",
    "evaluate",
    "fit",
    "normalized_images",
    "predict",
    "scaled_rate",
    "weights_sha256",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Accuracy": "metrics",
        "Chain": "schedule",
        "Classes": "prediction",
        "Cosine": "schedule",
        "Cyclical": "schedule",
        "Exponential": "schedule",
        "FitResult": "loop",
        "Piecewise": "schedule",
        "Polynomial": "schedule",
        "Prediction": "prediction",
        "Run": "run",
        "TrainConfig": "config",
        "Warmup": "schedule",
        "activations": "prediction",
        "classify": "prediction",
        "decay_groups": "parameters",
        "evaluate": "evaluation",
        "fit": "loop",
        "normalized_images": "prepare",
        "predict": "prediction",
        "scaled_rate": "schedule",
        "weights_sha256": "fingerprint",
    },
)
