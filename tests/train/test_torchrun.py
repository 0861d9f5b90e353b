"""Training under torchrun itself: one agent, and two of them as on two machines."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import free_port

from headrace.train.checkpoint import CheckpointFolder

_SCRIPT = """
import dataclasses, sys, time
import rank_jobs as jobs
from models import Pairs
from headrace.train import fit, weights_sha256

how, folder = sys.argv[1:]

def tell(event, state):
    if event == "step" and state.step == 4 and state.rank == 1 and how == "die":
        raise ZeroDivisionError("the fourth step of rank 1")
    if event == "step" and how == "wait":
        print(f"rank {state.rank} step {state.step}", flush=True)
        time.sleep(0.05)

config = dataclasses.replace(jobs.CONFIG, checkpoints=folder or None, max_epochs=3 if how != "wait" else 60)
model = jobs.plain_model()
result = fit(model, Pairs(), jobs.cross_entropy, jobs.adam, config, prepare=jobs.doubled, on_event=tell)
print(f"weights {weights_sha256(model)} after {result.step}", flush=True)
"""


def _start(tmp_path: Path, how: str, *options: str, folder: str = "") -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    support = str(Path(__file__).parents[1] / "support")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([support, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(script), how, folder]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def _weights(*outputs: str) -> list[str]:
    # ranks share a pipe, so what one writes can begin in the middle of another's line
    return [found for output in outputs for found in re.findall(r"weights [0-9a-f]{64} after \d+", output)]


@pytest.mark.timeout(180)
def test_fit_joins_under_torchrun(tmp_path: Path) -> None:
    with _start(tmp_path, "run", "--standalone", "--nproc-per-node=2") as agent:
        assert agent.stdout is not None
        output = agent.stdout.read()
    assert agent.returncode == 0, output
    first, second = _weights(output)
    assert first == second
    assert first.endswith(" after 15")


@pytest.mark.timeout(180)
def test_two_agents_train_together(tmp_path: Path) -> None:
    options = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=test", "--local-addr=127.0.0.1",
               f"--rdzv-endpoint=127.0.0.1:{free_port()}")  # fmt: skip
    with _start(tmp_path, "run", *options) as one, _start(tmp_path, "run", *options) as other:
        assert one.stdout is not None
        assert other.stdout is not None
        outputs = [one.stdout.read(), other.stdout.read()]
    assert (one.returncode, other.returncode) == (0, 0), outputs
    first, second = _weights(*outputs)
    assert first == second
    assert first.endswith(" after 15")


@pytest.mark.timeout(180)
def test_a_rank_that_dies_ends_the_job_with_its_error(tmp_path: Path) -> None:
    with _start(tmp_path, "die", "--standalone", "--nproc-per-node=2") as agent:
        assert agent.stdout is not None
        output = agent.stdout.read()
    assert agent.returncode == 1
    assert "ZeroDivisionError: the fourth step of rank 1" in output
    assert not _weights(output)


@pytest.mark.timeout(180)
def test_sigterm_for_torchrun_saves_a_step_that_all_ranks_have_done(tmp_path: Path) -> None:
    with _start(tmp_path, "wait", "--standalone", "--nproc-per-node=2", folder=f"{tmp_path}/run") as agent:
        assert agent.stdout is not None
        while "rank 0 step 4" not in (line := agent.stdout.readline()):  # ranks share the pipe
            assert line, "it ended before its fourth step"
        agent.send_signal(signal.SIGTERM)
        output = agent.stdout.read()
    assert agent.returncode != 0
    done = {rank: [int(step) for step in re.findall(rf"rank {rank} step (\d+)", output)] for rank in (0, 1)}
    newest = CheckpointFolder(tmp_path / "run").steps()[-1]
    assert [max([4, *steps]) for steps in done.values()] == [newest, newest], output
    assert newest < 300
