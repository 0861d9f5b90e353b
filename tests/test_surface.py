"""The names that users type: a change here is a decision, written into CHANGELOG.md."""

import importlib
import subprocess
import sys

import pytest

import headrace

PUBLIC = {
    "headrace": ["__version__"],
    "headrace.augment": [
        "AutoContrast",
        "ColorAugmenter",
        "CutMix",
        "Draw",
        "Equalize",
        "GaussianBlur",
        "GaussianNoise",
        "ImageAugmenter",
        "MixUp",
        "Mixed",
        "Normalize",
        "Posterize",
        "Purpose",
        "RandAugment",
        "RandomErasing",
        "RandomResizedCrop",
        "SaltAndPepperNoise",
        "Sharpness",
        "Solarize",
        "TrivialAugment",
        "apply_all",
    ],
    "headrace.datastores": [
        "AugmentedImageDatastore",
        "Batch",
        "Datastore",
        "ImageDatastore",
        "Loader",
        "OnError",
        "Plan",
        "Retry",
        "ShardDatastore",
        "decode_mask",
        "normalize",
        "transform",
    ],
    "headrace.train": [
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
    ],
}


def test_the_parts_are_found_without_importing_them() -> None:
    code = "import headrace; print(headrace.datastores.Loader.__name__, 'Loader' in dir(headrace.datastores))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "Loader True\n"
    assert {"augment", "datastores", "train", "errors"} <= set(dir(headrace))


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_these_and_they_exist(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    for name in PUBLIC[package]:
        assert getattr(module, name).__doc__, f"{package}.{name} needs a docstring"
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018
