"""The loader: composes plan, dispatch and batch, and knows where in the run it is."""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch

from ..augment.random import Draw
from ..errors import ConfigError, StateError
from .batch import Batch
from .counts import show_count
from .crew import StartMethod, prepare_start
from .datastore import Datastore, SupportsIndex, as_datastore
from .dispatch import Dispatcher, InlineDispatcher, Ticket
from .incidents import Action, IncidentLog, OnError, settle
from .meter import LoaderReport, Meter
from .payload import check_sendable
from .plan import BatchRows, LastBatch, Plan, Shuffle
from .pool import ProcessPool
from .slots import SlotLayout
from .tune import Tuner

__all__ = ["Loader"]

_STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Position:
    """The next batch: the end of an epoch is the start of the next one, and has no other form."""

    epoch: int
    step: int


def _same(saved: object, now: object) -> bool:
    return type(saved) is type(now) and saved == now


class Loader:
    """Batches of a datastore, made in the background, usable with any PyTorch loop.

    A batch depends on (data, seed, epoch, batch_size, step), and on ``shuffle``, ``streams``, ``window`` and
    ``last_batch``. Workers, prefetch, start method, ranks, crashes of workers and resumes change not one bit of it.

    Args:
        data: a datastore, or any object with ``__len__`` and ``__getitem__``.
        batch_size: rows of a global batch, over all ranks.
        seed: 0 <= seed < 2**64, of order and augmentation.
        workers: background processes; 0 makes each batch in this process when it is asked for. "auto" starts with a
            few and changes the number while it runs, within the cores of the machine; see ``report()``.
        prefetch: batches made ahead of the one in use, at least 1.
        shuffle: "global", "window", "once" or "never"; see ``Plan``.
        streams: see ``Plan``.
        window: shards shuffled together under ``shuffle="window"``.
        last_batch: "drop", "pad" or "keep"; see ``Plan``.
        rank: this process's number among ``world_size``; it gets its part of the rows of each batch.
        world_size: number of processes that share each batch.
        start_method: of the workers. "auto" is "forkserver" where there is one: torch is imported once, and a script
            needs no ``if __name__ == "__main__"`` unless its own functions take part.
        on_error: "raise", "substitute" or "skip", or an ``OnError`` with a log and a limit.
        timeout: seconds that a worker may take for one task (16 to 32 photos) before it is replaced.
        pin_memory: let a GPU copy from the batches directly; needs an NVIDIA GPU.

    Raises:
        ConfigError: a value is out of range, or the data cannot be loaded with it.

    Example:
        >>> pairs = [{"x": float(i), "label": i} for i in range(10)]
        >>> with Loader(pairs, batch_size=4, shuffle="never") as loader:
        ...     [batch.labels.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """

    def __init__(
        self,
        data: Datastore | SupportsIndex,
        batch_size: int,
        *,
        seed: int = 0,
        workers: int | Literal["auto"] = 0,
        prefetch: int = 4,
        shuffle: Shuffle = "global",
        streams: int = 1,
        window: int = 16,
        last_batch: LastBatch = "drop",
        rank: int = 0,
        world_size: int = 1,
        start_method: StartMethod = "auto",
        on_error: Action | OnError = "raise",
        timeout: float = 300.0,
        pin_memory: bool = False,
    ) -> None:
        counts = {"batch_size": batch_size, "seed": seed, "streams": streams, "window": window, "prefetch": prefetch}
        counts |= {"rank": rank, "world_size": world_size} | ({} if workers == "auto" else {"workers": workers})
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                auto = ' or "auto"' if name == "workers" else ""
                raise ConfigError(f"{name} must be a whole number{auto}, got {value!r}")
        batch_size, seed = int(batch_size), int(seed)
        is_time = isinstance(timeout, (int, float)) and timeout > 0
        if (workers != "auto" and workers < 0) or prefetch < 1 or not is_time:
            raise ConfigError(
                'workers must be "auto" or at least 0, prefetch at least 1 and timeout above 0, got '
                f"{workers!r}, {prefetch} and {timeout!r}"
            )
        self.on_error = on_error if isinstance(on_error, OnError) else OnError(on_error)
        self.data = as_datastore(data)
        self.plan = Plan(
            shard_sizes=self.data.shard_sizes,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            streams=streams,
            window=window,
            last_batch=last_batch,
        )
        self.rank, self.world_size = rank, world_size
        if (self.data.shard_sizes < 0).any() or self.plan.num_samples != len(self.data):
            samples = show_count(len(self.data), "sample")
            raise ConfigError(f"{self.data!r} has {samples}, but its shard_sizes add up to {self.plan.num_samples}")
        self.prefetch = prefetch
        self._meter = Meter()
        self._tuner = Tuner(self._meter) if workers == "auto" else None
        self._wanted = self._tuner.first if self._tuner else int(workers)
        self._log = IncidentLog(self.on_error, rank)
        self._timeout, self._pin = timeout, pin_memory
        rows = len(self.plan.batch(0, 0, rank=rank, world_size=world_size).ids)
        self._start_method = start_method
        if workers:
            _check_start(self.data, start_method)
        self._layout = SlotLayout(self.data.schema(), max(rows, 1))  # no batch has more rows than the first one
        self._dispatcher: Dispatcher | None = None
        self._next = _Position(0, 0)
        self._interrupted = False  # an epoch was left in the middle; the next iteration starts another one
        self._iteration = 0

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self.plan.num_steps

    @property
    def workers(self) -> int:
        """Background processes that make the batches, or will when the first iteration starts."""
        return self._wanted

    @property
    def incidents(self) -> int:
        """Samples that could not be made so far, and were substituted or skipped (``on_error``)."""
        return self._log.count

    def report(self) -> LoaderReport:
        """Return where the time went so far and what limits it; ``print(loader.report())``."""
        notes = [self._log.note] if self._log.note else []
        if self._tuner is not None:
            number = show_count(self._wanted, "worker")
            notes.append(f'workers="auto" is at {number}: {self._tuner.reason(self._wanted)}')
        return replace(self._meter.report(self._wanted), notes=tuple(notes))

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._next.epoch

    @property
    def step(self) -> int:
        """The number of the next batch in its epoch."""
        return self._next.step

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration run epoch ``epoch`` from its start."""
        if isinstance(epoch, bool) or not isinstance(epoch, (int, np.integer)):
            raise ConfigError(f"epoch must be a whole number, got {epoch!r}")
        epoch = Draw(self.plan.seed, int(epoch)).epoch  # refuses an epoch that is out of range
        self._next, self._interrupted = _Position(epoch, 0), False

    def __iter__(self) -> Iterator[Batch]:
        """Run one epoch, or the rest of one after ``load_state_dict``.

        Each call runs the next epoch, also when the last one was left in the middle. An older iteration ends when a new
        one starts.
        """
        if self._interrupted:
            self._next = _Position(self._next.epoch + 1, 0)
        self._interrupted = False
        self._iteration += 1
        return self._run(self._next, self._iteration)

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the last batch that was handed out, and what it is a position in: plain values."""
        return {"version": _STATE_VERSION, **asdict(self._next), **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken: the next iteration starts with the batch that would have followed.

        Nothing is read or skipped for it. Workers, prefetch, rank and world size may be others than they were.

        Raises:
            StateError: it is no such state, or belongs to other data or settings; nothing is changed.
        """
        if not isinstance(state, dict):
            raise StateError(f"this is no loader state, but {type(state).__name__}: state_dict() makes one")
        expected = {"version": _STATE_VERSION, **self._settings()}
        names = [*expected, "epoch", "step"]
        missing = [name for name in names if name not in state]
        if missing:
            raise StateError(f"this is no loader state: it lacks {', '.join(missing)}")
        other = [f"{n}: saved {state[n]!r}, now {expected[n]!r}" for n in expected if not _same(state[n], expected[n])]
        if other:
            raise StateError(
                f"the saved position belongs to another run ({'; '.join(other)}): "
                "use the same data and settings, or start from the beginning"
            )
        epoch, step = state["epoch"], state["step"]
        if type(epoch) is not int or type(step) is not int or not 0 <= epoch < 2**64 or not 0 <= step < len(self):
            steps = show_count(len(self), "step")
            raise StateError(f"epoch {epoch!r}, step {step!r} lies outside of an epoch of {steps}")
        self._next, self._interrupted = _Position(epoch, step), False

    def close(self) -> None:
        """End the workers. Batches stay valid, and a new iteration starts new workers."""
        self._iteration += 1
        if self._dispatcher is not None:
            self._dispatcher.close()
            self._dispatcher = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy stands where this one does, and has workers of its own."""
        return self.__dict__ | {"_dispatcher": None}

    def __repr__(self) -> str:
        batches, workers = show_count(len(self), "batch", "batches"), show_count(self.workers, "worker")
        return f"<Loader: {batches} of {self.plan.batch_size} from {self.data!r}, {workers}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settings(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "seed": plan.seed,
            "batch_size": plan.batch_size,
            "shuffle": plan.shuffle,
            "streams": plan.streams,
            "window": plan.window,
            "last_batch": plan.last_batch,
            "samples": plan.num_samples,
            "data": self.data.fingerprint,
        }

    def _run(self, start: _Position, iteration: int) -> Iterator[Batch]:
        draw = Draw(self.plan.seed, start.epoch)
        dispatcher = self._open()
        ahead: deque[tuple[BatchRows, Ticket]] = deque()
        upcoming = self.plan.batches(start.epoch, start.step, rank=self.rank, world_size=self.world_size)
        try:
            for step in range(start.step, len(self)):
                while len(ahead) <= self.prefetch and (later := next(upcoming, None)) is not None:
                    ahead.append((later, dispatcher.put(later.ids, draw)))
                dispatcher.poll()
                self._meter.asked(sum(ticket.done for _, ticket in ahead))
                planned, ticket = ahead.popleft()
                rows = dispatcher.get(ticket)
                self._log.add(ticket.incidents, start.epoch, step)
                self._advance(start.epoch, step)
                planned, rows = settle(planned, rows, ticket.incidents)
                self._meter.given(len(planned.ids))
                ids, valid = torch.from_numpy(planned.ids), torch.from_numpy(planned.valid)
                yield Batch.of_rows(self._layout.schema, rows, ids, valid, start.epoch, step)
                del rows, ticket  # the slot must not live longer than the consumer's batch
                if iteration != self._iteration:
                    return
                self._tune(dispatcher)
        finally:
            if not dispatcher.closed:
                for _, ticket in ahead:
                    dispatcher.drop(ticket)

    def _advance(self, epoch: int, step: int) -> None:
        last = step + 1 == len(self)
        self._next = _Position(epoch + 1, 0) if last else _Position(epoch, step + 1)
        self._interrupted = not last

    def _tune(self, dispatcher: Dispatcher) -> None:
        if self._tuner is not None and isinstance(dispatcher, ProcessPool):
            self._wanted = self._tuner.advise(self._wanted)
            dispatcher.resize(self._wanted)

    def _open(self) -> Dispatcher:
        self._meter.start()
        if self._dispatcher is None or self._dispatcher.closed:
            if not self._wanted:
                self._dispatcher = InlineDispatcher(
                    self.data, self._layout, on_error=self.on_error, pin=self._pin, meter=self._meter
                )
            else:
                self._dispatcher = ProcessPool(
                    self.data,
                    self._layout,
                    workers=self._wanted,
                    slots=min(self.prefetch, len(self)) + 2,
                    method=prepare_start(self._start_method),  # asked anew: this process may be a fork by now
                    on_error=self.on_error,
                    timeout=self._timeout,
                    pin=self._pin,
                    meter=self._meter,
                )
        return self._dispatcher


def _check_start(data: Datastore, start_method: StartMethod) -> None:
    """Find out now whether workers can be started that way, and given the data.

    Raises:
        ConfigError: they cannot.
    """
    if prepare_start(start_method) != "fork":
        check_sendable(data)
