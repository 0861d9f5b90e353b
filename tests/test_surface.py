"""The names that users type: a change here is a decision, written into CHANGELOG.md."""

import importlib

import pytest

PUBLIC = {
    "headrace": ["__version__"],
    "headrace.augment": ["Draw", "ImageAugmenter", "RandomResizedCrop"],
    "headrace.datastores": [
        "AugmentedImageDatastore",
        "Batch",
        "Datastore",
        "ImageDatastore",
        "Loader",
        "OnError",
        "ShardDatastore",
        "decode_mask",
    ],
    "headrace.train": ["Accuracy", "FitResult", "Run", "TrainConfig", "evaluate", "fit", "weights_sha256"],
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_these_and_they_exist(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    for name in PUBLIC[package]:
        assert getattr(module, name).__doc__, f"{package}.{name} needs a docstring"
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018
