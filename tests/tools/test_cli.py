"""The command line itself: light, one line per error, honest exit codes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from archives import image_folder, write_shards

from headrace import __version__
from headrace.datastores import ShardDatastore
from headrace.tools.cli import main


def headrace(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.tools.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["build", "--help"],
        ["index", "-h"],
        ["inspect", "-h"],
        ["verify", "-h"],
        ["export", "-h"],
        ["doctor", "-h"],
        ["view", "-h"],
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom headrace.tools.cli import main\n"
        f"try:\n    main({arguments!r})\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'numpy', 'torch', 'PIL', 'tqdm', 'webdataset', 'fsspec', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"headrace {__version__}" if arguments == ["--version"] else "usage: headrace")


@pytest.mark.parametrize("command", ["build", "index", "inspect", "verify", "export"])
def test_commands_do_their_work_without_torch(command: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "set")
    (tmp_path / "images").mkdir()
    arguments = {
        "build": [str(_images(tmp_path / "images")), str(tmp_path / "out")],
        "index": [str(tmp_path / "set")],
        "inspect": [str(tmp_path / "set"), "--deep"],
        "export": [str(tmp_path / "set"), str(tmp_path / "files")],
        "verify": [str(tmp_path / "set"), "--deep"],
    }[command]
    code = (
        f"import sys\nfrom headrace.tools.cli import main\nassert main({[command, *arguments]!r}) == 0\n"
        "assert not {'torch', 'webdataset', 'tqdm', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def _images(folder: Path) -> Path:
    image_folder(folder, {"a": 2})
    return folder


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["build"], ["build", "a"], ["build", "a", "b", "--shard-bytes", "0"], ["inspect"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    result = headrace(*arguments)
    assert result.returncode == 2
    assert "usage: headrace" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_an_error_is_one_line_and_ends_with_1(tmp_path: Path) -> None:
    result = headrace("build", tmp_path / "absent", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr == f"headrace build: {tmp_path}/absent is not there: check the path\n"
    assert result.stdout == ""


def test_errors_of_the_system_are_one_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ("x" * 250)).mkdir()
    long = f"{tmp_path}/{'x' * 300}"
    assert main(["inspect", long]) == 1
    assert capsys.readouterr().err.startswith("headrace inspect: ")


def buffered() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("words", [["inspect", "SET", "--json"], ["--help"], ["build", "--help"], ["--version"]])
def test_a_closed_pipe_is_no_traceback(tmp_path: Path, words: list[str]) -> None:
    write_shards(tmp_path)
    command = [sys.executable, "-m", "headrace.tools.cli", *(str(tmp_path) if w == "SET" else w for w in words)]
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, env=buffered())
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize("words", [["inspect", "SET"], ["--help"]])
def test_a_full_disk_behind_stdout_is_one_line(tmp_path: Path, words: list[str]) -> None:
    write_shards(tmp_path)
    command = [sys.executable, "-m", "headrace.tools.cli", *(str(tmp_path) if w == "SET" else w for w in words)]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, text=True, env=buffered())
    assert result.returncode == 1
    assert "No space left on device" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_the_null_device(tmp_path: Path, closed: str) -> None:
    images, python = _images(tmp_path / "images"), f"{sys.executable} -m headrace.tools.cli"
    for words in (f"build {images} {tmp_path}/out", f"inspect {tmp_path}/out", "--help"):
        result = subprocess.run(f"{python} {words} {closed}", shell=True, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
    result = subprocess.run(
        f"{python} inspect {tmp_path}/absent {closed}", shell=True, check=False, capture_output=True
    )
    assert result.returncode == 1
    assert b"Traceback" not in result.stderr
    ShardDatastore(tmp_path / "out").verify()


def test_no_memory_is_one_line(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=1)
    code = (
        "import sys\nfrom headrace.datastores import shards\nfrom headrace.tools import cli\n"
        "shards.ShardReader.count_each_field = lambda self: bytes(2**46)\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    result = subprocess.run([sys.executable, "-c", code, "inspect", tmp_path], capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (1, b"headrace inspect: out of memory\n")


@pytest.mark.parametrize("name", ["~no-such-user-here", "loop", "x" * 300, "loop/below"])
@pytest.mark.parametrize("command", ["build", "inspect", "verify", "export", "index", "view", "bench"])
def test_paths_that_nothing_can_lie_at_are_one_line(
    tmp_path: Path, command: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    words = {"build": [name, "out"], "export": [name, "out"], "view": [name, "-o", "x.png"]}.get(command, [name])
    assert main([command, *words]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"headrace {command}: ")
    assert name.removesuffix("/below") in said
    assert said.count("\n") == 1
    assert os.listdir(tmp_path) == ["loop"]


def test_names_that_no_terminal_can_show_are_escaped(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    write_shards(Path(os.fsdecode(folder)))
    command = [sys.executable.encode(), b"-m", b"headrace.tools.cli", b"inspect", folder, b"--sample", b"0"]
    result = subprocess.run(command, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert rb"caf\udce9" in result.stdout


def test_the_handler_of_sigterm_is_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    main(["inspect", str(tmp_path)])
    assert signal.getsignal(signal.SIGTERM) is before
