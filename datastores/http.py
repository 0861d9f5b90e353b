"""Web servers: ranges of one version of a file, by its ETag or time, and listings as servers print them."""

from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from .failures import BadAnswerError
from .transport import Answer, Stat, check_answer

__all__ = ["HttpTransport", "links_in"]

_CONNECT_SECONDS = 10.0
_MAX_LISTING = 1 << 26
_KEPT = "%/:=&+$,;@!*'()~"  # what a path may hold, or holds because it was quoted before


class HttpTransport:
    """Talks through the session of fsspec's HTTP file system, which knows about proxies, headers and log-ins.

    Args:
        filesystem: ``fsspec.implementations.http.HTTPFileSystem``.
        options: its arguments.
        timeout: seconds that a request may take.
    """

    def __init__(self, filesystem: Callable[..., Any], options: Mapping[str, Any], timeout: float) -> None:
        from aiohttp import ClientTimeout

        waits = ClientTimeout(total=timeout, sock_connect=min(_CONNECT_SECONDS, timeout))
        client = {"timeout": waits, **options.get("client_kwargs", {})}
        self._files = filesystem(skip_instance_cache=True, **{**options, "client_kwargs": client})
        self._headers = dict(options.get("headers", {}))
        self._timeout = timeout

    def _wait(self, ask: Callable[..., Any], *arguments: object) -> Any:
        from fsspec.asyn import sync

        return sync(self._files.loop, ask, *arguments, timeout=self._timeout)

    async def _get(self, url: str, headers: Mapping[str, str]) -> Any:
        """Return the answer to a request, its body not read."""
        from yarl import URL

        session = await self._files.set_session()
        wanted = {**self._headers, "Accept-Encoding": "identity", **headers}
        return session.get(URL(_quoted(url), encoded=True), headers=wanted)

    def stat(self, url: str) -> Stat:
        """Ask for size and mark of a file."""
        found: Stat = self._wait(self._stat, url)
        return found

    async def _stat(self, url: str) -> Stat:
        # The first byte instead of HEAD: it shows whether the server serves ranges, and some refuse HEAD.
        async with await self._get(url, {"Range": "bytes=0-0"}) as found:
            answer = _answer(found)
            if found.status == 416 and answer.content_range == "bytes */0":
                return Stat(0, answer.mark)
            found.raise_for_status()
            if found.status == 200 and found.headers.get("Content-Length") == "0":
                return Stat(0, answer.mark)
            return Stat(answer.range()[2], answer.mark)

    def read(self, url: str, offset: int, length: int, stat: Stat) -> bytes:
        """Return exactly these bytes of the file that ``stat`` describes."""
        data: bytes = self._wait(self._read, url, offset, length, stat)
        return data

    async def _read(self, url: str, offset: int, length: int, stat: Stat) -> bytes:
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        if stat.mark.startswith('"'):  # a strong ETag; weak ones never match (RFC 9110, section 13.1.1)
            headers["If-Match"] = stat.mark
        async with await self._get(url, headers) as found:
            found.raise_for_status()
            check_answer(_answer(found), offset, length, stat)
            data: bytes = await found.content.read(length + 1)
            while len(data) <= length and (more := await found.content.read(length + 1 - len(data))):
                data += more
        return data

    def names(self, url: str) -> list[str]:
        """Return the names of what lies in a folder, by the page that the server makes of it."""
        found: list[str] = self._wait(self._names, url)
        return found

    async def _names(self, url: str) -> list[str]:
        async with await self._get(f"{url.rstrip('/')}/", {}) as found:
            if found.status in (403, 405):
                raise FileNotFoundError  # a server that lists no folders; what lies there may be readable all the same
            found.raise_for_status()
            if not found.headers.get("Content-Type", "").startswith("text/html"):
                raise FileNotFoundError
            page = await found.content.read(_MAX_LISTING)
            while more := await found.content.read(_MAX_LISTING):
                page += more
                if len(page) > _MAX_LISTING:
                    raise BadAnswerError(f"the list of its files has more than {_MAX_LISTING} bytes")
            return links_in(page.decode("utf-8", "replace"), str(found.url))

    def write(self, url: str, data: bytes) -> None:
        """Refuse: web servers have no common way to replace a file."""
        del url, data
        raise BadAnswerError("nothing can be written through HTTP: write it to a disk, and copy it to the server")


def links_in(page: str, url: str) -> list[str]:
    """Return the names of the files and folders directly in a folder that a page links to, each once.

    Args:
        page: HTML, as web servers make it of a folder.
        url: of the page, with ``/`` at its end.

    Example:
        >>> links_in('<a href="../">up</a> <a href="?C=N">sort</a> <a href="x%20y.tar">x</a> <a href="z/">z</a>', "http://h/a/")
        ['x%20y.tar', 'z']
    """
    parser = _Links()
    parser.feed(page)
    here, names = urlsplit(url), dict[str, None]()
    for link in parser.found:
        there = urlsplit(urljoin(url, link))
        if (there.scheme, there.netloc) == (here.scheme, here.netloc) and not there.query:
            inside = there.path.removeprefix(here.path) if there.path.startswith(here.path) else ""
            if inside.strip("/") and "/" not in inside.rstrip("/"):
                names[inside.rstrip("/")] = None
    return list(names)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _quoted(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash}{quote(path, safe=_KEPT)}"


def _answer(found: Any) -> Answer:
    headers = found.headers
    mark = headers.get("ETag") or headers.get("Last-Modified") or ""
    return Answer(
        found.status,
        headers.get("Content-Range", ""),
        mark,
        headers.get("Content-Encoding", "").lower(),
        headers.get("Content-Type", "").lower(),
    )
