"""Which storage serves what a user typed."""

import re
from collections.abc import Sequence

from ..errors import ConfigError
from .remote import RemoteOptions, RemoteStorage, scheme_of
from .storage import LocalStorage, Storage, local_path, without_secrets

__all__ = ["is_remote", "open_storage"]

_QUERY = re.compile(r"\?[^/]*=")


def open_storage(locations: Sequence[str], options: RemoteOptions | None = None) -> tuple[Storage, list[str]]:
    """Return the storage that serves these locations, and their paths in it.

    Args:
        locations: local paths (see ``storage.local_path``), or URLs of one scheme that fsspec knows.
        options: how remote places are reached.

    Raises:
        ConfigError: they are of several kinds, fsspec does not know the scheme, a package is missing, or a URL holds a
            password or a query.
    """
    schemes = sorted({scheme_of(location) for location in locations} - {"file"})
    if set(schemes) <= {""}:
        return LocalStorage(), [local_path(location) for location in locations]
    if len(schemes) > 1 or any(scheme_of(location) == "file" for location in locations):
        raise ConfigError(f"locations must be of one kind, got {[without_secrets(location) for location in locations]}")
    return RemoteStorage(schemes[0], options), [_checked(location) for location in locations]


def is_remote(location: str) -> bool:
    """Whether a location is a URL of another place than this machine's files."""
    return scheme_of(location) not in ("", "file")


def _checked(location: str) -> str:
    """Return a URL that can be shown, stored and compared."""
    scheme, _, rest = location.partition("://")
    host = rest.partition("/")[0]
    secret = ":" in host.rpartition("@")[0]
    if secret or (scheme.lower() in ("http", "https") and (_QUERY.search(rest) or "@" in host)):
        raise ConfigError(
            f"{without_secrets(location)}: a password, or a query such as a signature, may not stand in the URL, since "
            "URLs are shown and stored: pass them with storage_options="
        )
    if "\0" in location or not host:
        raise ConfigError(
            f"{without_secrets(location)!r} is no URL: write {scheme}://, then a host or bucket, then a path"
        )
    return f"{scheme.lower()}://{rest.rstrip('/')}"
