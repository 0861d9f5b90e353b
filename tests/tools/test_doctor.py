"""headrace doctor: what it says is so, and what is wrong is found by trying it."""

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch

from headrace.tools.cli import main


def doctor(before: str = "", **environment: str) -> tuple[int, dict[str, object]]:
    """Run the command in a process of its own, after some lines that make the machine another one."""
    code = f"import sys\n{before}\nfrom headrace.tools.cli import main\nsys.exit(main(['doctor', '--json']))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, json.loads(result.stdout)


def test_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor()
    assert (code, found["ok"], found["problems"]) == (0, True, [])
    assert found["packages"]["torch"] == version("torch")
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["open_files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert found["jpegs_of_500_x_375_decoded_a_second_on_a_core"] > 10
    assert found["worker_process"].startswith("answers after")
    assert len(found["gpus"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr()
    assert "\njpeg decoder     simplejpeg\n" in shown.out
    assert shown.err == ""


POOR = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.modules["simplejpeg"] = None
"""


def test_a_poor_machine_is_given_advice() -> None:
    code, found = doctor(POOR)
    assert (code, found["open_files"], found["cores"], found["jpeg_decoder"]) == (0, 200, 1, "Pillow")
    for advice in ("ask for a higher limit", "one core", "headrace[fast]"):
        assert any(advice in line for line in found["advice"]), advice


def test_memory_that_cannot_be_shared_is_a_problem() -> None:
    before = "import errno, os\ndef refuse(*names):\n    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))\n"
    code, found = doctor(before + "os.memfd_create = refuse")
    assert (code, found["ok"]) == (1, False)
    assert any("memfd_create" in line and "workers=0" in line for line in found["problems"])
