"""Real servers on loopback, on ports that the system chooses: for files, for S3, and a proxy that spoils answers."""

import email.utils
import hashlib
import html
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit


@dataclass
class Manners:
    """How a web server behaves.

    Args:
        ranges: serves byte ranges.
        etags: gives ETags and honours If-Match; otherwise it gives times only.
        encoding: Content-Encoding that it claims.
        page: answers everything with a web page and status 200.
        listing: lists folders.
        password: refuses requests without this Authorization header.
        shift: bytes by which its ranges are wrong.
        refuse: answers everything with this status.
    """

    ranges: bool = True
    etags: bool = True
    encoding: str = ""
    page: bool = False
    listing: bool = True
    password: str = ""
    shift: int = 0
    refuse: int = 0


@dataclass
class WebServer:
    """A web server for the files of a folder."""

    folder: Path
    manners: Manners = field(default_factory=Manners)
    requests: list[str] = field(default_factory=list)
    authorized: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def web_server(folder: Path, manners: Manners | None = None) -> Iterator[WebServer]:
    site = WebServer(folder, manners or Manners())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            site.requests.append(f"{urlsplit(self.path).path} {self.headers.get('Range', '')}".strip())
            if "Authorization" in self.headers:
                site.authorized.append(self.path)
            _answer(self, site)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # its own 5 lose connections, each for a second
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing on stderr of clients that hang up: tests look at what commands write there."""

    server = Server(("127.0.0.1", 0), Handler)
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(request: BaseHTTPRequestHandler, site: WebServer) -> None:
    manners, path = site.manners, site.folder / unquote(urlsplit(request.path).path).lstrip("/")
    if manners.password and request.headers.get("Authorization") != manners.password:
        _send(request, 401, b"who are you?", {})
    elif manners.refuse:
        _send(request, manners.refuse, b"", {})
    elif manners.page:
        _send(request, 200, b"<html>Sorry, something went wrong.</html>", {"Content-Type": "text/html"})
    elif path.is_dir():
        _send_folder(request, path, manners)
    elif not path.is_file():
        _send(request, 404, b"not found", {})
    else:
        _send_file(request, path, manners)


def _send_folder(request: BaseHTTPRequestHandler, path: Path, manners: Manners) -> None:
    if not manners.listing:
        _send(request, 403, b"no", {})
        return
    names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in path.iterdir())
    links = "".join(f'<a href="{html.escape(quote(name))}">{html.escape(name)}</a>\n' for name in ["../", *names])
    page = f'<html><a href="?C=N;O=D">Name</a>{links}</html>'.encode()
    _send(request, 200, page, {"Content-Type": "text/html;charset=utf-8"})


def _send_file(request: BaseHTTPRequestHandler, path: Path, manners: Manners) -> None:
    state = path.stat()
    size, mark = state.st_size, f"{state.st_size}-{state.st_mtime_ns}"
    if size < 1 << 20:  # clocks of file systems are too coarse for tests that replace a file at once
        mark = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    etag = f'"{mark}"'
    headers = {"Last-Modified": email.utils.formatdate(state.st_mtime, usegmt=True)}
    if manners.etags:
        headers["ETag"] = etag
        if request.headers.get("If-Match", etag) != etag:
            _send(request, 412, b"", {})
            return
    if manners.encoding:
        headers["Content-Encoding"] = manners.encoding
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", "")) if manners.ranges else None
    if wanted is None:
        _send(request, 200, path.read_bytes(), headers)
        return
    first, last = int(wanted[1]), min(int(wanted[2] or size), size - 1)
    if first >= size:
        _send(request, 416, b"", {**headers, "Content-Range": f"bytes */{size}"})
        return
    first, last = first + manners.shift, last + manners.shift
    with path.open("rb") as file:
        file.seek(first)
        data = file.read(last + 1 - first)
    _send(request, 206, data, {**headers, "Content-Range": f"bytes {first}-{last}/{size}"})


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
    with suppress(ConnectionError):
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


#: What is done to an answer: "" nothing, "503" and the like instead of it, "cut" and "reset" in the middle of its body,
#: "refuse" a reset at once, "hang" no answer at all.
Fault = str


@dataclass
class FaultProxy:
    """A proxy before a server on loopback.

    Args:
        upstream: port of the server.
        choose: (number of the request, its first line) -> what is done to the answer.
        delay: seconds before each answer.
    """

    upstream: int
    choose: Callable[[int, str], Fault]
    delay: float = 0.0
    port: int = 0
    spoiled: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    body_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def fault_proxy(upstream: int, choose: Callable[[int, str], Fault], delay: float = 0.0) -> Iterator[FaultProxy]:
    proxy = FaultProxy(upstream, choose, delay)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    proxy.port = listener.getsockname()[1]
    ended = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_relay, args=(proxy, connection, ended), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield proxy
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _relay(proxy: FaultProxy, connection: socket.socket, ended: threading.Event) -> None:
    """Serve one request; the client is told that the connection closes behind it."""
    with connection, suppress(ConnectionError):
        head = b""
        while b"\r\n\r\n" not in head:
            more = connection.recv(65536)
            if not more:
                return
            head += more
        line = head.split(b"\r\n", 1)[0].decode()
        with proxy.lock:
            proxy.lines.append(line)
            fault = proxy.choose(len(proxy.lines), line)
            if fault:
                proxy.spoiled.append(fault)
        time.sleep(proxy.delay)
        if fault == "hang":
            ended.wait(30)
        elif fault == "refuse":
            _reset(connection)
        elif fault.isdigit():
            connection.sendall(f"HTTP/1.1 {fault} Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        else:
            _pass_on(proxy, connection, head, fault)


def _pass_on(proxy: FaultProxy, connection: socket.socket, head: bytes, fault: str) -> None:
    head, _, body = head.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    with socket.create_connection(("127.0.0.1", proxy.upstream)) as server:
        server.sendall(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
        answer = b""
        while more := server.recv(1 << 20):
            answer += more
    start = answer.index(b"\r\n\r\n") + 4
    first = answer[:start].split(b"\r\n")
    kept = [line for line in first if not line.lower().startswith(b"connection:")]
    kept.insert(1, b"Connection: close")
    payload = answer[start:]
    proxy.body_bytes += len(payload)
    if fault in ("cut", "reset"):
        payload = payload[: len(payload) // 2]
    connection.sendall(b"\r\n".join(kept) + payload)
    if fault == "reset":
        _reset(connection)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass(frozen=True)
class Bucket:
    """An S3 server of moto that checks signatures."""

    port: int
    key: str
    secret: str
    name: str = "bucket"

    def options(self, port: int | None = None) -> dict[str, object]:
        """Return storage_options; ``port`` is that of a proxy."""
        return {
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": f"http://127.0.0.1:{port or self.port}",
            "client_kwargs": {"region_name": "us-east-1"},
        }


_MOTO = """
import json, logging, sys, urllib.request
import boto3
from moto.server import ThreadedMotoServer
logging.disable()
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
_, port = server.get_host_and_port()
url = f"http://127.0.0.1:{port}"
known = {"endpoint_url": url, "region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
iam = boto3.client("iam", **known)
iam.create_user(UserName="u")
key = iam.create_access_key(UserName="u")["AccessKey"]
allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(allow))
boto3.client("s3", **known).create_bucket(Bucket="bucket")
switch = urllib.request.Request(f"{url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}, method="POST")
urllib.request.urlopen(switch).close()
print(json.dumps({"port": port, "key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
sys.stdin.read()
"""


@contextmanager
def moto_bucket() -> Iterator[Bucket]:
    """Start moto's S3 server in a process that ends with this one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHONWARNINGS"))}
    command = [sys.executable, "-W", "ignore", "-c", _MOTO]
    with subprocess.Popen(
        command, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        line = server.stdout.readline()
        assert line, server.stderr.read()[-2000:]
        try:
            yield Bucket(**json.loads(line))
        finally:
            server.communicate()  # closes its standard input
