"""Servers that are started once."""

from collections.abc import Iterator

import pytest
from servers import Bucket, moto_bucket


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    """An S3 server that checks signatures; nothing here looks for credentials on a network."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_PROFILE",
            "AWS_SESSION_TOKEN",
            "AWS_ENDPOINT_URL",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        with moto_bucket() as started:
            yield started
