"""Tar shards: which members one holds and where their bytes lie, found by hopping from header to header.

Payloads are never read. Understood: ustar with prefix, POSIX.1-2001 (PAX) ``x`` and ``g`` headers, GNU long names,
base-256 sizes, hard links (they lead to their target's bytes), archives without end blocks. Directories, symbolic
links and devices are counted and passed over. Sparse and multi-volume members are refused, since their bytes do not
lie in one piece. Every offset and size is checked against the file, and every header against its checksum, so any bytes
give members or a ``ShardError``, in time proportional to the number of headers.

The formats: POSIX.1-2017 ``pax``, section "pax Interchange Format" and "ustar Interchange Format"; GNU tar manual,
"Basic Tar Format".
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..errors import ConfigError, ShardError

__all__ = ["BLOCK", "END", "Member", "TarReader", "padding", "skip_reason", "split_name", "ustar_header"]

BLOCK = 512

#: Two blocks of zeros end an archive.
END = bytes(2 * BLOCK)

_ZERO = bytes(BLOCK)
_RECORD = 20 * BLOCK  # tar pads its files to this
_MAX_EXTENSION = 1 << 20  # of a PAX header or a long name; real ones have a few hundred bytes
_MAX_USTAR_SIZE = 8**11 - 1
_PASSED_OVER = {b"2": "symbolic link", b"3": "device", b"4": "device", b"5": "folder", b"6": "named pipe"}
_MAGIC = (
    (b"\x1f\x8b", "gzip data", "unpack it first (gunzip)"),
    (b"\xfd7zXZ", "xz data", "unpack it first (unxz)"),
    (b"BZh", "bzip2 data", "unpack it first (bunzip2)"),
    (b"\x28\xb5\x2f\xfd", "zstd data", "unpack it first (unzstd)"),
    (b"PK", "a zip file", "unpack it and run `headrace build` on the folder"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the real file (git lfs pull)"),
    (b"<", "HTML or XML, perhaps a server's error page", "download it again and look at the answer's status"),
    (b"{", "JSON, perhaps a server's error message", "download it again and look at the answer's status"),
)


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file of an archive.

    Args:
        name: as stored; bytes that are no UTF-8 are kept as surrogate escapes.
        header: byte at which its header begins, long-name headers included.
        offset: byte at which its payload begins.
        size: bytes of the payload.
    """

    name: str
    header: int
    offset: int
    size: int


@dataclass(slots=True)
class _Override:
    """What long-name and PAX headers say about the next member, or global ones about all that follow."""

    path: str | None = None
    linkpath: str | None = None
    size: int | None = None

    def over(self, other: "_Override") -> "_Override":
        """Return what counts if this stands nearer to the member than ``other`` does."""
        return _Override(
            other.path if self.path is None else self.path,
            other.linkpath if self.linkpath is None else self.linkpath,
            other.size if self.size is None else self.size,
        )


class TarReader:
    """The regular members of one archive, in stored order; iterate over it once.

    Args:
        read: ``read(offset, length)`` returns exactly that many bytes of the archive.
        size: bytes of the archive.
        where: its name, for errors.
        stop: members whose header begins at or behind this byte are left out; default: none are.
        window: bytes that are read at once where a header is looked for; what follows it, such as labels, comes along.

    Raises:
        ShardError: while iterating: it is no tar, it is truncated, or a header is damaged or of a refused kind.

    Example:
        >>> data = ustar_header("a/1.txt", 2) + b"hi" + bytes(padding(2)) + END
        >>> reader = TarReader(lambda offset, length: data[offset : offset + length], len(data), "x.tar")
        >>> list(reader)
        [Member(name='a/1.txt', header=0, offset=512, size=2)]
    """

    def __init__(
        self, read: Callable[[int, int], bytes], size: int, where: str, stop: int | None = None, window: int = 4096
    ) -> None:
        self.where = where
        self.size = size
        self.stop = size + 1 if stop is None else stop
        self.skipped: Counter[str] = Counter()
        self._read = read
        self._ahead = window
        self._window = b""
        self._window_start = 0
        self._defaults = _Override()
        self._targets: dict[str, tuple[int, int]] | None = None

    def __iter__(self) -> Iterator[Member]:
        offset, header, override = 0, 0, _Override()
        while offset < self.stop and (block := self._next_block(offset)) is not None:
            kind, size = block[156:157], self._number(block[124:136], offset, "size")
            payload = offset + BLOCK
            if kind in (b"x", b"X", b"g", b"L", b"K"):
                target = self._defaults if kind == b"g" else override
                self._extend(target, kind, self._extension(payload, size, offset))
                offset = payload + size + padding(size)
                continue
            stated = override.over(self._defaults).over(_Override(_header_name(block), _text(block[157:257]), size))
            member, offset = self._member(kind, header, payload, stated)
            if member is not None:
                yield member
            header, override = offset, _Override()

    def _next_block(self, offset: int) -> bytes | None:
        """Return the header at ``offset``, checked, or None at the end of the archive."""
        block = self._peek(offset, min(BLOCK, max(0, self.size - offset)))
        if not block.strip(b"\0"):
            if offset == 0 and self.size < BLOCK:
                raise ShardError(f"{self.where} is no tar: it has {self.size} bytes: build or download it again")
            self._check_end(offset)
            return None
        if offset and len(block) < BLOCK:
            raise self._truncated(offset, f"a header needs {BLOCK} bytes", len(block))
        if len(block) < BLOCK or not _checksum_fits(block):
            raise self._not_a_header(block, offset)
        return block

    def _check_end(self, offset: int) -> None:
        """Refuse an archive that goes on behind its end: other readers would silently lose the rest."""
        tail = self._peek(offset, min(_RECORD + BLOCK, max(0, self.size - offset)))
        for start in range(BLOCK, len(tail) - BLOCK + 1, BLOCK):
            block = tail[start : start + BLOCK]
            if block != _ZERO:
                if _checksum_fits(block):
                    raise ShardError(
                        f"{self.where} goes on behind its end blocks: end at byte {offset}, a member at byte "
                        f"{offset + start}: archives that were joined with cat lose all but the first, so unpack it "
                        "with `tar --ignore-zeros` and pack it again"
                    )
                return

    def _member(self, kind: bytes, header: int, payload: int, stated: _Override) -> tuple[Member | None, int]:
        """Return the member that a header describes, if it is one, and the byte at which the next header begins."""
        name, size = stated.path or "", stated.size or 0
        if kind in _PASSED_OVER:
            self.skipped[_PASSED_OVER[kind]] += 1
            return None, payload
        if kind in (b"S", b"M"):
            what = "sparse" if kind == b"S" else "part of a multi-volume archive"
            raise ShardError(f"{self.where}: member {name!r} at byte {header} is {what}: pack it again without that")
        if kind == b"1":
            return self._linked(name, stated.linkpath or "", header), payload
        if payload + size > self.size:
            raise self._truncated(payload, f"member {name!r} needs {size} bytes", max(0, self.size - payload))
        following = payload + size + padding(size)
        if kind not in (b"0", b"\0", b"7") or name.endswith("/"):
            self.skipped["folder" if name.endswith("/") else "other type"] += 1
            return None, following
        if self._targets is not None:
            self._targets[name] = payload, size
        return Member(name, header, payload, size), following

    def _linked(self, name: str, target: str, header: int) -> Member | None:
        """Return a hard link as a member that shares its target's bytes."""
        if self._targets is None:  # few archives have links, so names are remembered from the first one on
            earlier = TarReader(self._read, self.size, self.where, header, self._ahead)
            self._targets = {member.name: (member.offset, member.size) for member in earlier}
        if target not in self._targets:
            self.skipped["hard link without target"] += 1
            return None
        self._targets[name] = self._targets[target]
        return Member(name, header, *self._targets[target])

    def _extension(self, payload: int, size: int, header: int) -> bytes:
        if size > _MAX_EXTENSION:
            raise ShardError(
                f"{self.where}: the extended header at byte {header} claims {size} bytes, more than the "
                f"{_MAX_EXTENSION} that are accepted: the archive is damaged"
            )
        if payload + size > self.size:
            raise self._truncated(payload, f"an extended header needs {size} bytes", max(0, self.size - payload))
        return self._peek(payload, size)

    def _extend(self, override: _Override, kind: bytes, data: bytes) -> None:
        if kind == b"L":
            override.path = _text(data)
        elif kind == b"K":
            override.linkpath = _text(data)
        else:
            for key, value in self._pax_records(data):
                if key.startswith(b"GNU.sparse."):
                    raise ShardError(f"{self.where} holds sparse members: pack it again without --sparse")
                if key == b"path":
                    override.path = _text(value)
                elif key == b"linkpath":
                    override.linkpath = _text(value)
                elif key == b"size":
                    override.size = self._decimal(value)

    def _pax_records(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = 0
        while start < len(data):
            digits, space, _ = data[start : start + 20].partition(b" ")
            end = start + int(digits) if space and digits.isdigit() else 0
            key, equals, value = data[start + len(digits) + 1 : end].partition(b"=")
            if not (start < end <= len(data) and equals and value.endswith(b"\n")):
                found = data[start : start + 40]
                raise ShardError(f"{self.where}: damaged PAX header, found {found!r}: copy or build it again")
            yield key, value[:-1]
            start = end

    def _decimal(self, value: bytes) -> int:
        if not value.isdigit() or len(value) > 20:
            raise ShardError(f"{self.where}: a PAX header gives the size {value[:40]!r}: the archive is damaged")
        return int(value)

    def _number(self, field: bytes, header: int, what: str) -> int:
        value = _parse_number(field)
        if value is None:
            raise ShardError(f"{self.where}: the header at byte {header} has the {what} {field!r}: it is damaged")
        return value

    def _peek(self, offset: int, length: int) -> bytes:
        """Return bytes of the archive, through a small window; the caller stays inside the archive."""
        start = offset - self._window_start
        if start < 0 or start + length > len(self._window):
            self._window = self._read(offset, min(max(length, self._ahead), self.size - offset)) if length else b""
            self._window_start, start = offset, 0
        return self._window[start : start + length]

    def _truncated(self, offset: int, need: str, found: int) -> ShardError:
        return ShardError(
            f"{self.where} is truncated: {need} at byte {offset}, found {found} (the file has {self.size} bytes): "
            "copy or build it again"
        )

    def _not_a_header(self, block: bytes, offset: int) -> ShardError:
        if offset:
            return ShardError(
                f"{self.where}: no tar header at byte {offset} (its checksum does not fit), found {block[:16]!r}: the "
                "archive is damaged, so copy or build it again"
            )
        text = block.removeprefix(b"\xef\xbb\xbf").lstrip()
        for magic, what, remedy in _MAGIC:
            if block.startswith(magic) or text.startswith(magic):
                return ShardError(f"{self.where} is no tar: it looks like {what} ({block[:40]!r}): {remedy}")
        return ShardError(f"{self.where} is no tar: it begins with {block[:40]!r}: pass a shard made by tar")


def _checksum_fits(block: bytes) -> bool:
    """Compare a header's checksum: the sum of its bytes with the checksum itself as spaces (old tars: signed bytes)."""
    stated = _parse_number(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if stated == total:
        return True
    negative = sum(byte > 127 for byte in block) - sum(byte > 127 for byte in block[148:156])
    return stated == total - 256 * negative


def _parse_number(field: bytes) -> int | None:
    """Return a header's number: octal digits, or base 256 (GNU) where the first bit is set; None if it is neither."""
    if field[0] & 0x80:
        return None if field[0] & 0x40 else int.from_bytes(bytes([field[0] & 0x3F]) + field[1:], "big")
    text = field.split(b"\0", 1)[0].strip(b" ")
    if not text:
        return 0
    return int(text, 8) if text.isdigit() and not set(text) & set(b"89") else None


def _header_name(block: bytes) -> str:
    name = _text(block[:100])
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""  # GNU keeps times there
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


_METADATA = re.compile(r"__[^/]*__(/|$)|(.*/)?__MACOSX/")


def skip_reason(name: str) -> str | None:
    """Say why a member is no part of a sample, or return None.

    Passed over: hidden files (``.x``, and the ``._x`` of macOS), ``__MACOSX`` folders, names that begin with a
    ``__meta__`` like part (as ``webdataset`` does), names without a dot in their last part.
    """
    base = name.rpartition("/")[2]
    if base.startswith("."):
        return "hidden file"
    if _METADATA.match(_plain(name)):
        return "metadata"
    return None if "." in base else "no extension"


def split_name(name: str) -> tuple[str, str]:
    """Return (key, field) of a member: cut at the first dot of the last part of its name.

    A leading ``./`` is dropped, the field is in lower case.

    Example:
        >>> split_name("./train.v2/Cat 1.seg.PNG")
        ('train.v2/Cat 1', 'seg.png')
    """
    folder, slash, base = _plain(name).rpartition("/")
    stem, _, field = base.partition(".")
    return folder + slash + stem, field.lower()


def _plain(name: str) -> str:
    while name.startswith("./"):
        name = name[2:]
    return name


def padding(size: int) -> int:
    """Return the zero bytes that follow a payload of ``size`` bytes."""
    return -size % BLOCK


def ustar_header(name: str, size: int) -> bytes:
    """Return the ustar header of a regular file: time 0, owner 0, mode 0644, so equal input makes equal bytes.

    Args:
        name: of the member; see ``ustar_name``.
        size: bytes of its payload, below 8 GiB.

    Raises:
        ConfigError: name or size do not fit into a ustar header.
    """
    parts = ustar_name(name)
    if parts is None or not 0 <= size <= _MAX_USTAR_SIZE:
        raise ConfigError(f"member {name!r} of {size} bytes does not fit a ustar header: 255 bytes of name, 8 GiB")
    prefix, base = parts
    head = base.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"00000000000\0"
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + prefix.ljust(167, b"\0")
    return head + b"%06o\0 " % (sum(head) + sum(tail) + 8 * ord(" ")) + tail


def ustar_name(name: str) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) as a ustar header stores them, or None if the name is too long.

    Up to 100 bytes go into one piece; a longer name is cut at a ``/`` into at most 155 and 100 bytes.
    """
    raw = name.encode("utf-8", "surrogateescape")
    if 0 < len(raw) <= 100:
        return b"", raw
    cut = raw.rfind(b"/", 0, 156)
    return (raw[:cut], raw[cut + 1 :]) if cut > 0 and 0 < len(raw) - cut - 1 <= 100 else None
