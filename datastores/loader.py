"""The loader: composes plan, dispatch and batch, and knows where in the run it is."""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

from ..augment.random import Draw
from ..errors import ConfigError, StateError
from .batch import Batch
from .datastore import Datastore, SupportsIndex, as_datastore
from .dispatch import Dispatcher, InlineDispatcher, Ticket
from .plan import BatchRows, LastBatch, Plan, Shuffle
from .pool import ProcessPool, StartMethod, prepare_start
from .slots import SlotLayout

__all__ = ["Loader"]

_STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Position:
    """The next batch: the end of an epoch is the start of the next one, and has no other form."""

    epoch: int
    step: int


class Loader:
    """Batches of a datastore, made in the background, usable with any PyTorch loop.

    A batch depends on (data, seed, epoch, batch_size, step), and on ``shuffle``, ``streams``, ``window`` and
    ``last_batch``. Workers, prefetch, start method, ranks, crashes of workers and resumes change not one bit of it.

    Args:
        data: a datastore, or any object with ``__len__`` and ``__getitem__``.
        batch_size: rows of a global batch, over all ranks.
        seed: 0 <= seed < 2**64, of order and augmentation.
        workers: background processes; 0 makes each batch in this process when it is asked for.
        prefetch: batches made ahead of the one in use, at least 1.
        shuffle: "global", "window", "once" or "never"; see ``Plan``.
        streams: see ``Plan``.
        window: shards shuffled together under ``shuffle="window"``.
        last_batch: "drop", "pad" or "keep"; see ``Plan``.
        rank: this process's number among ``world_size``; it gets its part of the rows of each batch.
        world_size: number of processes that share each batch.
        start_method: of the workers. "auto" is "forkserver" where there is one: torch is imported once, and a script
            needs no ``if __name__ == "__main__"`` unless its own functions take part.

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
        workers: int = 0,
        prefetch: int = 4,
        shuffle: Shuffle = "global",
        streams: int = 1,
        window: int = 16,
        last_batch: LastBatch = "drop",
        rank: int = 0,
        world_size: int = 1,
        start_method: StartMethod = "auto",
    ) -> None:
        if workers < 0 or prefetch < 1:
            raise ConfigError(f"workers must be at least 0 and prefetch at least 1, got {workers} and {prefetch}")
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
        self.workers, self.prefetch = workers, prefetch
        rows = len(self.plan.batch(0, 0, rank=rank, world_size=world_size).ids)
        self._start_method = prepare_start(start_method) if workers else None
        self._layout = SlotLayout(self.data.schema(), max(rows, -(-batch_size // world_size)))
        self._dispatcher: Dispatcher | None = None
        self._next = _Position(0, 0)
        self._interrupted = False  # an epoch was left in the middle; the next iteration starts another one
        self._iteration = 0

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self.plan.num_steps

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
        Draw(self.plan.seed, epoch)  # refuses an epoch that is out of range
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
        expected = {"version": _STATE_VERSION, **self._settings()}
        names = [*expected, "epoch", "step"]
        missing = [name for name in names if name not in state]
        if missing:
            raise StateError(f"this is no loader state: it lacks {', '.join(missing)}")
        other = [f"{n}: saved {state[n]!r}, now {expected[n]!r}" for n in expected if state[n] != expected[n]]
        if other:
            raise StateError(
                f"the saved position belongs to another run ({'; '.join(other)}): "
                "use the same data and settings, or start from the beginning"
            )
        position = _Position(state["epoch"], state["step"])
        if position.epoch < 0 or not 0 <= position.step < len(self):
            raise StateError(f"{position} lies outside of an epoch of {len(self)} steps")
        self._next, self._interrupted = position, False

    def close(self) -> None:
        """End the workers. Batches stay valid, and a new iteration starts new workers."""
        self._iteration += 1
        if self._dispatcher is not None:
            self._dispatcher.close()
            self._dispatcher = None

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
        order, draw = self.plan.epoch(start.epoch), Draw(self.plan.seed, start.epoch)
        dispatcher = self._open()
        ahead: deque[tuple[BatchRows, Ticket]] = deque()
        upcoming = iter(range(start.step, len(self)))
        try:
            for step in range(start.step, len(self)):
                while len(ahead) <= self.prefetch and (later := next(upcoming, None)) is not None:
                    planned = self.plan.batch(
                        start.epoch, later, rank=self.rank, world_size=self.world_size, order=order
                    )
                    ahead.append((planned, dispatcher.put(planned.ids, draw)))
                planned, ticket = ahead.popleft()
                rows = dispatcher.get(ticket)
                last = step + 1 == len(self)
                self._next = _Position(start.epoch + 1, 0) if last else _Position(start.epoch, step + 1)
                self._interrupted = not last
                ids, valid = torch.from_numpy(planned.ids), torch.from_numpy(planned.valid)
                yield Batch.of_rows(self._layout.schema, rows, ids, valid, start.epoch, step)
                del rows  # the slot must not live longer than the consumer's batch
                if iteration != self._iteration:
                    return
        finally:
            if not dispatcher.closed:
                for _, ticket in ahead:
                    dispatcher.drop(ticket)

    def _open(self) -> Dispatcher:
        if self._dispatcher is None or self._dispatcher.closed:
            if self._start_method is None:
                self._dispatcher = InlineDispatcher(self.data, self._layout)
            else:
                self._dispatcher = ProcessPool(
                    self.data,
                    self._layout,
                    workers=self.workers,
                    slots=self.prefetch + 2,
                    start_method=self._start_method,
                )
        return self._dispatcher
