"""Shards behind a network: the same bits as on a disk, or an error that says what to do."""

import hashlib
import multiprocessing
import os
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import boto3
import botocore.exceptions
import pytest
from archives import jpeg, tar_bytes, write_shards
from servers import Bucket, Fault, Manners, fault_proxy, web_server

from headrace.augment import ImageAugmenter
from headrace.datastores import AugmentedImageDatastore, ImageDatastore, Loader, Retry, ShardDatastore
from headrace.datastores.failures import failure_of
from headrace.datastores.http import links_in
from headrace.datastores.places import open_storage
from headrace.datastores.remote import RemoteOptions, RemoteStorage
from headrace.errors import ConfigError, HeadraceError, MissingDataError, ShardError, UnreachableError
from headrace.tools.cli import main

QUICK = Retry(attempts=4, timeout=5.0, pause=0.01, longest_pause=0.05)
PATIENT = Retry(attempts=12, timeout=5.0, pause=0.01, longest_pause=0.05)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches are made in a home folder that goes with the test."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def digest(images: ShardDatastore, workers: int = 0) -> str:
    """SHA-256 of everything that two epochs of augmented batches hold."""
    sha256 = hashlib.sha256()
    flips = ImageAugmenter(x_reflection=True)
    data = AugmentedImageDatastore((16, 16), images, mode="random_resized_crop", augment=flips)
    with Loader(data, batch_size=4, seed=3, workers=workers) as loader:
        for _ in range(2):
            for batch in loader:
                for part in (batch.images, batch.labels, batch.ids):
                    sha256.update(part.numpy().tobytes())
    return sha256.hexdigest()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards with an index in ``with``, two foreign ones without in ``without``."""
    write_shards(tmp_path / "with", samples=10, per_shard=4)
    (tmp_path / "without").mkdir()
    for number in range(2):
        members = [(f"{number}{row}.{end}", data) for row in range(5) for end, data in
                   (("cls", b"%d" % row), ("jpg", jpeg(10 * number + row)))]  # fmt: skip
        (tmp_path / "without" / f"t-{number}.tar").write_bytes(tar_bytes(members))
    return tmp_path


def upload(bucket: Bucket, folder: Path, prefix: str) -> None:
    known = {"aws_access_key_id": bucket.key, "aws_secret_access_key": bucket.secret, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{bucket.port}", **known)
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=bucket.name, Key=f"{prefix}/{path.relative_to(folder)}", Body=path.read_bytes())
    client.close()


@pytest.mark.parametrize("kind", ["with", "without"])
def test_a_web_server_gives_the_batches_of_the_disk(shards: Path, kind: str) -> None:
    local = ShardDatastore(str(shards / kind))
    with web_server(shards) as site:
        remote = ShardDatastore(f"{site.url}/{kind}/", retry=QUICK)
        assert remote.fingerprint == local.fingerprint
        assert [remote.raw(i) for i in range(10)] == [local.raw(i) for i in range(10)]
        assert remote.locate(4).startswith(f"{site.url}/{kind}/")
        assert digest(remote) == digest(remote, workers=2) == digest(local)


@pytest.mark.parametrize("kind", ["with", "without"])
def test_a_bucket_gives_the_batches_of_the_disk(shards: Path, bucket: Bucket, kind: str) -> None:
    local, place = ShardDatastore(str(shards / kind)), f"{shards.name}/{kind}"
    upload(bucket, shards / kind, place)
    remote = ShardDatastore(f"s3://{bucket.name}/{place}", storage_options=bucket.options(), retry=QUICK)
    assert remote.fingerprint == local.fingerprint
    assert digest(remote, workers=2) == digest(local)
    if kind == "with":
        remote.verify()


@pytest.mark.parametrize(
    "pattern", ["without/t-{0..1}.tar", "without/*.tar", "w*out/t-?.tar", ["without/t-0.tar", "without/t-1.tar"]]
)
def test_globs_braces_and_lists(shards: Path, bucket: Bucket, pattern: str | list[str]) -> None:
    upload(bucket, shards, f"{shards.name}/p")
    names = [pattern] if isinstance(pattern, str) else pattern
    keys = [ShardDatastore([f"{shards}/{name}" for name in names]).key(i) for i in range(10)]
    with web_server(shards) as site:
        for root, options in ((site.url, {}), (f"s3://{bucket.name}/{shards.name}/p", bucket.options())):
            found = ShardDatastore([f"{root}/{name}" for name in names], storage_options=options, retry=QUICK)
            assert [found.key(i) for i in range(10)] == keys
            with pytest.raises(MissingDataError, match=r"nothing matches|not there"):
                ShardDatastore(f"{root}/without/u-*.tar", storage_options=options, retry=QUICK)


def test_a_server_that_lists_nothing_serves_what_an_index_or_a_name_names(shards: Path) -> None:
    with web_server(shards, Manners(listing=False)) as site:
        assert len(ShardDatastore(f"{site.url}/with", retry=QUICK)) == 10
        assert len(ShardDatastore(f"{site.url}/without/t-{{0..1}}.tar", retry=QUICK)) == 10
        with pytest.raises(MissingDataError, match=f"{site.url}/without.*not there"):
            ShardDatastore(f"{site.url}/without", retry=QUICK)


def test_headers_are_hopped_over_and_payloads_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "big.tar").write_bytes(tar_bytes([(f"{i}.jpg", bytes(300_000)) for i in range(6)]))
    with web_server(tmp_path) as site, fault_proxy(site.port, lambda number, line: "") as proxy:
        assert len(ShardDatastore(f"{proxy.url}/big.tar", retry=QUICK)) == 6
        assert proxy.body_bytes < 150_000, "of 1.8 million"


FAULTS = ["503", "429", "cut", "reset", "hang", "refuse"]


def client_error(status: int, code: str) -> botocore.exceptions.ClientError:
    answer = {"Error": {"Code": code, "Message": "word"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "GetObject")


def nth(fault: Fault, every: int) -> Callable[[int, str], Fault]:
    return lambda number, line: fault if number % every == 0 else ""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["with", "without"])
def test_every_fault_at_every_stage_changes_no_bit(shards: Path, kind: str, fault: Fault) -> None:
    every, retry = (7 if fault == "hang" else 3), Retry(attempts=12, timeout=0.3, pause=0.01, longest_pause=0.02)
    with web_server(shards) as site, fault_proxy(site.port, nth(fault, every)) as proxy:
        remote = ShardDatastore(f"{proxy.url}/{kind}", retry=retry, cache_bytes=0)
        assert digest(remote) == digest(ShardDatastore(str(shards / kind)))
        assert len(proxy.spoiled) >= 3


@pytest.mark.parametrize("fault", ["503", "cut", "reset", "refuse"])
def test_faults_of_a_bucket_change_no_bit(shards: Path, bucket: Bucket, fault: Fault) -> None:
    upload(bucket, shards / "with", f"{shards.name}/with")
    with fault_proxy(bucket.port, nth(fault, 3)) as proxy:
        place, options = f"s3://{bucket.name}/{shards.name}/with", bucket.options(proxy.port)
        remote = ShardDatastore(place, storage_options=options, retry=PATIENT, cache_bytes=0)
        assert digest(remote) == digest(ShardDatastore(str(shards / "with")))
        assert len(proxy.spoiled) >= 3


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("503", r"the server cannot answer now \(.*503\): try again later \(3 attempts\)"),
        ("cut", r"the connection broke \(ClientPayloadError.*\(3 attempts\)"),
        ("hang", r"no answer in time.*\(3 attempts\)"),
        ("refuse", r"the connection broke.*\(3 attempts\)"),
    ],
)
def test_a_fault_that_stays_is_an_error_that_names_bytes_and_address(shards: Path, fault: Fault, says: str) -> None:
    retry = Retry(attempts=3, timeout=0.2, pause=0.0, longest_pause=0.0)
    faults: list[Fault] = [""]
    with web_server(shards) as site, fault_proxy(site.port, lambda number, line: faults[0]) as proxy:
        remote = ShardDatastore(f"{proxy.url}/with", retry=retry, cache_bytes=0)
        remote.raw(0)
        faults[0] = fault
        with pytest.raises(
            ShardError, match=rf"reading \d+ bytes at byte \d+ of {proxy.url}/with/shard-000000\.tar: .*{says}"
        ):
            remote.raw(1)
        faults[0] = ""
        assert len(remote.raw(1)["jpg"]) == len(jpeg(1)), "and what was refused once is read later"


@pytest.mark.parametrize("workers", [0, 2])
def test_no_sample_takes_anothers_place_because_the_network_fails(shards: Path, workers: int) -> None:
    faults: list[Fault] = [""]
    retry = Retry(attempts=2, timeout=5.0, pause=0.0, longest_pause=0.0)
    with web_server(shards) as site, fault_proxy(site.port, lambda number, line: faults[0]) as proxy:
        remote = ShardDatastore(f"{proxy.url}/with", retry=retry, cache_bytes=0)
        data = AugmentedImageDatastore((16, 16), remote)
        with Loader(data, batch_size=4, workers=workers, on_error="substitute") as loader:
            faults[0] = "503"
            with pytest.raises(UnreachableError, match=r"shard-00000.\.tar.*cannot answer now"):
                list(loader)


@pytest.mark.parametrize(
    ("manners", "says"),
    [
        (Manners(ranges=False), "the server ignores Range"),
        (Manners(shift=1), "the server answered with"),
        (Manners(encoding="gzip"), "Content-Encoding gzip"),
        (Manners(page=True), "answered with a web page"),
        (Manners(password="Basic x"), "access was refused"),
    ],
)
def test_answers_that_are_not_what_was_asked_for_are_errors(shards: Path, manners: Manners, says: str) -> None:
    with web_server(shards, manners) as site, pytest.raises(ShardError, match=f"{site.url}/with.*{says}"):
        ShardDatastore(f"{site.url}/with/shard-000000.tar", retry=QUICK)


def test_what_a_server_wants_is_passed_on(shards: Path) -> None:
    with web_server(shards, Manners(password="Bearer word")) as site:
        options = {"headers": {"Authorization": "Bearer word"}}
        assert len(ShardDatastore(f"{site.url}/with", storage_options=options, retry=QUICK)) == 10


@pytest.mark.parametrize("etags", [True, False])
@pytest.mark.parametrize("kind", ["with", "without"])
def test_a_shard_that_is_replaced_is_named(shards: Path, kind: str, etags: bool) -> None:
    with web_server(shards, Manners(etags=etags)) as site:
        remote = ShardDatastore(f"{site.url}/{kind}", retry=QUICK, cache_bytes=0)
        sent = pickle.dumps(remote)
        first = min((shards / kind).glob("*.tar"))
        remote.raw(0)
        first.write_bytes(first.read_bytes()[:-1] + b"\1")
        os.utime(first, (1, 1))
        with pytest.raises(ShardError, match=rf"{first.name}.*replaced"):
            remote.raw(1)
        if kind == "without":  # another process sees the shard for the first time
            with pytest.raises(ShardError, match=rf"{first.name}.*replaced"):
                pickle.loads(sent).raw(1)


def test_a_local_shard_that_is_replaced_after_it_was_scanned_is_named(shards: Path) -> None:
    sent = pickle.dumps(kept := ShardDatastore(str(shards / "without")))
    first = shards / "without" / "t-0.tar"
    (shards / "new").write_bytes(first.read_bytes())
    (shards / "new").replace(first)
    with pytest.raises(ShardError, match=r"t-0\.tar was replaced"):
        pickle.loads(sent).raw(0)
    assert len(kept) == 10


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": None, "secret": None}, r"no credentials .*set AWS_ACCESS_KEY_ID .*anonymous=True"),
        ({"secret": "wrong-secret"}, r"refused.*set AWS_ACCESS_KEY_ID"),
        ({"key": "AKIAUNKNOWN"}, r"refused.*set AWS_ACCESS_KEY_ID"),
    ],
)
def test_credentials_that_are_missing_or_wrong_are_told_quickly(
    bucket: Bucket, change: dict[str, str], says: str
) -> None:
    started = time.monotonic()
    with pytest.raises(HeadraceError, match=says) as found:
        ShardDatastore(f"s3://{bucket.name}/x", storage_options={**bucket.options(), **change}, retry=QUICK)
    assert time.monotonic() - started < 5
    assert "wrong-secret" not in str(found.value)
    assert bucket.secret not in str(found.value)
    assert found.value.__cause__ is None


def test_anonymous_requests_carry_no_credentials(shards: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.secret)
    with web_server(shards, Manners(listing=False)) as site:  # to anyone who reads, a public bucket is a web server
        options = {"endpoint_url": site.url, "client_kwargs": {"region_name": "us-east-1"}}
        public = ShardDatastore("s3://with/shard-{000000..000002}.tar", anonymous=True, storage_options=options)
        assert len(public.raw(9)["jpg"]) == len(jpeg(9))
        assert site.requests
        assert not site.authorized
        signed = ShardDatastore("s3://with/shard-{000000..000002}.tar", storage_options=options)
        signed.raw(9)
        assert site.authorized


def test_what_a_store_hides_may_be_refused_or_absent(tmp_path: Path, bucket: Bucket) -> None:
    with web_server(tmp_path, Manners(refuse=403)) as site:
        options = {**bucket.options(), "endpoint_url": site.url}
        with pytest.raises(
            MissingDataError, match=r"s3://b/x\.tar: access was refused, or it is not there.*set AWS_ACC"
        ):
            ShardDatastore("s3://b/x.tar", storage_options=options, retry=QUICK)


def test_a_bucket_that_is_not_there_is_named(bucket: Bucket) -> None:
    with pytest.raises(MissingDataError, match=r"s3://no-such-bucket/x.*not there"):
        ShardDatastore("s3://no-such-bucket/x", storage_options=bucket.options(), retry=QUICK)


def _read_in_child(storage: RemoteStorage, path: str, queue: "multiprocessing.queues.Queue[bytes]") -> None:
    queue.put(storage.read(path, 257, 5))


def test_a_fork_gets_a_client_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(range(256)) * 40)
    with web_server(tmp_path) as site:
        storage, path = RemoteStorage("http", RemoteOptions(retry=QUICK)), f"{site.url}/x.bin"
        assert storage.read(path, 0, 3) == b"\0\1\2"
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_read_in_child, args=(storage, path, queue))
        child.start()
        assert queue.get(timeout=10) == bytes(range(1, 6))
        child.join(10)
        assert child.exitcode == 0
        assert storage.read(path, 3, 3) == b"\3\4\5"


@pytest.mark.parametrize(
    ("locations", "says"),
    [
        (["https://me:word@host/x.tar"], r"^https://host/x\.tar: a password"),
        (["https://host/x.tar?X-Amz-Signature=word"], r"^https://host/x\.tar: a password"),
        (["nonsense://x"], "nonsense:// is no place"),
        (["/a.tar", "s3://b/c.tar"], "of one kind"),
        (["file:///a.tar", "memory://b/c.tar"], "of one kind"),
        (["https://"], "is no URL"),
    ],
)
def test_locations_that_cannot_work(locations: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as found:
        open_storage(locations)
    assert "word" not in str(found.value).replace("password", "")


def test_images_one_by_one_are_read_from_disks_only() -> None:
    with pytest.raises(ConfigError, match="is not local"):
        ImageDatastore("s3://bucket/images")


@pytest.mark.parametrize(
    ("error", "again", "says"),
    [
        (botocore.exceptions.EndpointConnectionError(endpoint_url="https://me:word@h"), True, "connection broke"),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url="https://h?word"), True, "connection broke"),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="https://h?word"), True, "connection broke"),
        (botocore.exceptions.ConnectionClosedError(endpoint_url="https://h?word"), True, "connection broke"),
        (botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), True, "connection broke"),
        (botocore.exceptions.SSLError(endpoint_url="https://h?word", error="word"), False, "certificate"),
        (botocore.exceptions.NoCredentialsError(), False, "set AWS_ACCESS_KEY_ID"),
        (botocore.exceptions.ProfileNotFound(profile="word"), False, "set AWS_ACCESS_KEY_ID"),
        (aiohttp.ServerDisconnectedError(), True, "connection broke"),
        (aiohttp.ClientPayloadError("word"), True, "connection broke"),
        (ConnectionResetError("word"), True, "connection broke"),
        (TimeoutError("word"), True, "no answer in time"),
        (FileNotFoundError("word"), False, "it is not there"),
        (PermissionError("word"), False, "refused"),
        (client_error(503, "SlowDown"), True, "cannot answer now"),
        (client_error(400, "RequestTimeout"), True, "cannot answer now"),
        (client_error(404, "NoSuchKey"), False, "it is not there"),
        (client_error(403, "AccessDenied"), False, "refused, or it is not there"),
        (client_error(403, "SignatureDoesNotMatch"), False, "access was refused"),
        (client_error(400, "ExpiredToken"), False, r"it failed \(ClientError, ExpiredToken, status 400\)"),
        (client_error(412, "PreconditionFailed"), False, "replaced"),
        (ValueError("word"), False, r"it failed \(ValueError\)"),
    ],
)
def test_what_errors_of_libraries_mean(error: Exception, again: bool, says: str) -> None:
    failure = failure_of(error, "s3")
    assert failure.again is again
    assert re.search(says, failure.reason)
    assert "word" not in failure.reason


def test_retry_refuses_what_cannot_work() -> None:
    for wrong in ({"attempts": 0}, {"timeout": 0}, {"pause": -1}, {"pause": 2, "longest_pause": 1}):
        with pytest.raises(ConfigError, match="Retry needs"):
            Retry(**wrong)
    with pytest.raises(ConfigError, match="anonymous=True is not known for memory"):
        ShardDatastore("memory://x", anonymous=True)


def test_links_of_a_page() -> None:
    links = [
        "/d/b%20c.tar",
        "http://h:1/d/e.tar",
        "http://o/d/f.tar",
        "../up.tar",
        "deep/er.tar",
        "x.tar?a=1",
        "./",
        "a.tar",
    ]
    page = "<a HREF='a.tar'>1</a><a>2</a>" + "".join(f'<a href="{link}">{link}</a>' for link in links)
    assert links_in(page, "http://h:1/d/") == ["a.tar", "b%20c.tar", "e.tar"]


@pytest.fixture
def command_line(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket.port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.mark.usefixtures("command_line")
def test_index_writes_beside_the_shards_in_a_bucket(
    shards: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    upload(bucket, shards / "without", f"{shards.name}/foreign")
    url = f"s3://{bucket.name}/{shards.name}/foreign"
    assert main(["index", url, "--checksums", "--quiet"]) == 0
    assert "10 samples in 2 shards" in capsys.readouterr().out
    assert main(["index", str(shards / "without"), "--checksums", "--quiet"]) == 0
    remote, local = ShardDatastore(url, index="require"), ShardDatastore(str(shards / "without"), index="require")
    assert remote.fingerprint == local.fingerprint
    remote.verify()
    assert main(["inspect", url]) == 0


def test_index_says_that_a_web_server_takes_nothing(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with web_server(shards) as site:
        assert main(["index", f"{site.url}/without", "--quiet"]) == 1
        assert "nothing can be written through HTTP" in capsys.readouterr().err
