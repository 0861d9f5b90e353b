"""Every storage keeps the one contract: on real disks and real servers."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import fsspec
import pytest
from servers import Bucket, Manners, web_server

from headrace.datastores.contract import StorageContract
from headrace.datastores.remote import RemoteOptions, RemoteStorage, Retry
from headrace.datastores.storage import LocalStorage

QUICK = Retry(attempts=3, timeout=10, pause=0.01, longest_pause=0.05)


class TestLocal(StorageContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.storage, self.root = LocalStorage(), str(tmp_path)

    def put(self, path: str, data: bytes) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_name("new").write_bytes(data)
        target.with_name("new").replace(target)


class TestMemory(StorageContract):
    """Stands for every scheme that has no transport of its own."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.storage, self.root = RemoteStorage("memory", RemoteOptions(retry=QUICK)), f"memory://{tmp_path.name}"

    def put(self, path: str, data: bytes) -> None:
        fsspec.filesystem("memory").pipe_file(path.removeprefix("memory:/"), data)


class TestHttp(StorageContract):
    writable = False
    manners = Manners()

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> Iterator[None]:
        with web_server(tmp_path, self.manners) as self.site:
            self.storage, self.root = RemoteStorage("http", RemoteOptions(retry=QUICK)), f"{self.site.url}/top"
            yield

    def put(self, path: str, data: bytes) -> None:
        target = self.site.folder / path.removeprefix(f"{self.site.url}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


class TestS3(StorageContract):
    @pytest.fixture(autouse=True)
    def place(self, bucket: Bucket, tmp_path: Path) -> None:
        self.storage = RemoteStorage("s3", RemoteOptions(storage_options=bucket.options(), retry=QUICK))
        self.root = f"s3://{bucket.name}/{tmp_path.name}"
        self.client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{bucket.port}",
            region_name="us-east-1",
            aws_access_key_id=bucket.key,
            aws_secret_access_key=bucket.secret,
        )

    @pytest.fixture(autouse=True)
    def after(self) -> Iterator[None]:
        yield
        self.client.close()

    def put(self, path: str, data: bytes) -> None:
        bucket, _, key = path.removeprefix("s3://").partition("/")
        self.client.put_object(Bucket=bucket, Key=key, Body=data)
