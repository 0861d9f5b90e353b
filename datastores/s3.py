"""S3 and stores that speak like it: ranges of one version of an object, by its ETag."""

from collections.abc import Callable, Mapping
from typing import Any

from .transport import Answer, Stat, check_answer

__all__ = ["S3Transport"]

_CONNECT_SECONDS = 10.0


class S3Transport:
    """Talks through the client of s3fs, which knows about credentials, regions and endpoints.

    Args:
        filesystem: ``s3fs.S3FileSystem``.
        options: its arguments.
        timeout: seconds that a request may take.
    """

    def __init__(self, filesystem: Callable[..., Any], options: Mapping[str, Any], timeout: float) -> None:
        config = {**_config(timeout), **options.get("config_kwargs", {})}
        self._files = filesystem(skip_instance_cache=True, **{**options, "config_kwargs": config})
        self._timeout = timeout

    def _wait(self, ask: Callable[..., Any], *arguments: object) -> Any:
        from fsspec.asyn import sync

        return sync(self._files.loop, ask, *arguments, timeout=self._timeout)

    async def _client(self, url: str) -> tuple[Any, dict[str, str]]:
        bucket, key, _ = self._files.split_path(url)
        await self._files.set_session()
        return await self._files.get_s3(bucket), {"Bucket": bucket, "Key": key}

    def stat(self, url: str) -> Stat:
        """Ask for size and mark of an object."""
        found: Stat = self._wait(self._stat, url)
        return found

    async def _stat(self, url: str) -> Stat:
        client, place = await self._client(url)
        if not place["Key"]:
            raise FileNotFoundError
        found = await client.head_object(**place)
        return Stat(found["ContentLength"], found.get("ETag", ""))

    def read(self, url: str, offset: int, length: int, stat: Stat) -> bytes:
        """Return exactly these bytes of the object that ``stat`` describes."""
        data: bytes = self._wait(self._read, url, offset, length, stat)
        return data

    async def _read(self, url: str, offset: int, length: int, stat: Stat) -> bytes:
        client, place = await self._client(url)
        same = {"IfMatch": stat.mark} if stat.mark else {}
        found = await client.get_object(**place, **same, Range=f"bytes={offset}-{offset + length - 1}")
        async with found["Body"] as body:
            # Some stores answer with status 200 to what is a range all the same; Content-Range tells.
            status = 206 if found.get("ContentRange") else found["ResponseMetadata"]["HTTPStatusCode"]
            check_answer(Answer(status, found.get("ContentRange", ""), found.get("ETag", "")), offset, length, stat)
            data: bytes = await body.read()
        return data

    def names(self, url: str) -> list[str]:
        """Return the names of what lies in a folder."""
        found: list[str] = self._wait(self._names, url)
        return found

    async def _names(self, url: str) -> list[str]:
        client, place = await self._client(url)
        prefix = f"{place['Key'].rstrip('/')}/" if place["Key"] else ""
        names, more = list[str](), dict[str, str]()
        while True:
            page = await client.list_objects_v2(Bucket=place["Bucket"], Prefix=prefix, Delimiter="/", **more)
            names += [item["Key"].removeprefix(prefix) for item in page.get("Contents", [])]
            names += [item["Prefix"].removeprefix(prefix).rstrip("/") for item in page.get("CommonPrefixes", [])]
            if not page.get("IsTruncated"):
                break
            more = {"ContinuationToken": page["NextContinuationToken"]}
        if not names and prefix:
            raise FileNotFoundError
        return [name for name in names if name]  # "" is the empty object that some tools make for a folder

    def write(self, url: str, data: bytes) -> None:
        """Create or replace an object at once."""
        self._wait(self._write, url, data)

    async def _write(self, url: str, data: bytes) -> None:
        client, place = await self._client(url)
        await client.put_object(**place, Body=data)


def _config(timeout: float) -> dict[str, Any]:
    """Return botocore's settings: it asks once, since ``remote.py`` asks again."""
    from botocore.config import Config

    config: dict[str, Any] = {
        "connect_timeout": min(_CONNECT_SECONDS, timeout),
        "read_timeout": timeout,
        "retries": {"total_max_attempts": 1},
    }
    if "response_checksum_validation" in Config.OPTION_DEFAULTS:
        # Several stores send the checksum of the whole object with a part of it.
        config["response_checksum_validation"] = "when_required"
    return config
