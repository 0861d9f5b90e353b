"""Keys that every tar reader understands in the same way.

A key becomes the name of tar members, ``<key>.<field>``, and readers cut that name at the first dot of its last part,
pass over hidden and ``__meta__`` names, and trip over spaces. So what could be misread is percent-encoded, as in a URL:
dots of the last part, ``%``, spaces, control characters, backslashes, bytes that are no UTF-8, and folder parts that
are empty, ``.``, ``..``, ``__MACOSX`` or (the first one) ``__x__``. ``urllib.parse.unquote(key,
errors="surrogateescape")`` gives the original back.

A key that is too long for a ustar header keeps its beginning and ends in ``-`` and a 128-bit digest of the whole; its
folders are dropped if they alone are longer than 155 bytes. That cannot be undone: the builder lists such keys.
"""

import hashlib
import re

from ..errors import ConfigError
from .tar import ustar_name

__all__ = ["encode_key", "fit_key", "key_digest"]

_UNSAFE = re.compile(r"[\x00-\x20\x7f-\x9f%\\\udc80-\udcff]")
_UNSAFE_BUT_QUOTED = re.compile(_UNSAFE.pattern.replace("%", ""))
_EMPTY_PART = re.compile(r"^/|/(?=/)|/$")
_DOTS_PART = re.compile(r"(?:^|(?<=/))\.{1,2}(?=/)")
_METADATA_PART = re.compile(r"^_(?=_[^/]*__/)|(?:^|(?<=/))_(?=_MACOSX/)")


def encode_key(key: str, *, is_quoted: bool = False) -> str:
    """Return ``key`` with all that could be misread percent-encoded; different keys stay different.

    Args:
        key: any text.
        is_quoted: it comes from a tar, so it was encoded before if it needed that, and ``%`` stays what it is; a key
            that needs no encoding comes back as it is.

    Raises:
        ConfigError: it is empty or no text.

    Example:
        >>> encode_key("my cats/no.1")
        'my%20cats/no%2E1'
    """
    if not isinstance(key, str) or not key:
        raise ConfigError(f"a key must be a text that is not empty, got {key!r}")
    try:
        safe = (_UNSAFE_BUT_QUOTED if is_quoted else _UNSAFE).sub(_quote, key)
        for pattern in (_EMPTY_PART, _DOTS_PART, _METADATA_PART):
            safe = pattern.sub(_quote, safe)
        safe.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"key {key!r} holds characters that are no text: rename it") from error
    folder, slash, base = safe.rpartition("/")
    return folder + slash + base.replace(".", "%2E")


def _quote(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))


def fit_key(key: str, field: str) -> str:
    """Return ``key``, shortened if ``<key>.<field>`` does not fit into a ustar header.

    Args:
        key: encoded.
        field: the longest field name of the sample, at most 48 bytes.
    """
    if ustar_name(f"{key}.{field}") is not None:
        return key
    folder, slash, base = key.rpartition("/")
    ending = f"-{key_digest(key).hex()}"
    room = 100 - len(f"{ending}.{field}".encode())
    start = base.encode()[:room].decode(errors="ignore")
    return (folder + slash if len(folder.encode()) <= 155 else "") + start + ending


def key_digest(key: str) -> bytes:
    """Return 16 bytes that stand for a key: BLAKE2b, so keys that differ have different digests."""
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest()
