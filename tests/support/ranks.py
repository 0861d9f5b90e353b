"""Several processes that train one model, as torchrun would start them, without waiting for torch in each."""

import atexit
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from headrace.datastores.crew import prepare_start
from headrace.datastores.payload import without_main

_FLEETS: dict[int, list["Rank"]] = {}  # ranks that wait for another job, by how many there are


class Rank:
    """One process that does jobs, and what they came to."""

    def __init__(self, environment: dict[str, str]) -> None:
        prepare_start("forkserver")
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, environment))
        with without_main():
            self.process.start()
        theirs.close()

    def do(self, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._pipe.send((job, arguments))

    def outcome(self) -> Any:
        """Return what the job returned, or "<error>: <message>"; "" if it was killed or exited."""
        try:
            return self._pipe.recv() if self._pipe.poll(60) else "no answer in a minute"
        except (EOFError, ConnectionResetError):
            self.process.join(20)
            return ""

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _fleet(size: int) -> list[Rank]:
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [Rank(shared | {"RANK": str(number), "LOCAL_RANK": str(number)}) for number in range(size)]


@contextmanager
def started(job: Callable[..., Any], size: int, *arguments: Any) -> Iterator[list[Rank]]:
    """Start ``job(*arguments)`` on ``size`` ranks of its own, which may be killed; ``job`` is importable."""
    ranks = _fleet(size)
    try:
        for rank in ranks:
            rank.do(job, arguments)
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


def run_ranks(job: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """Return what ``job(*arguments)`` came to on each rank."""
    ranks = _FLEETS.pop(size, None) or _fleet(size)
    for rank in ranks:
        rank.do(job, arguments)
    outcomes = [rank.outcome() for rank in ranks]
    if any(isinstance(outcome, str) for outcome in outcomes):  # they may wait for each other
        _close(ranks)
    else:
        _FLEETS[size] = ranks
    return outcomes


@atexit.register
def _close_all() -> None:
    for ranks in _FLEETS.values():
        _close(ranks)


def _close(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.close()


def _work(pipe: Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # the server that forks workers keeps it from them
    while True:
        job, arguments = pipe.recv()
        try:
            outcome = job(*arguments)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        pipe.send(outcome)
