"""Several processes that train one model: which of them this one is, and what they tell each other.

Whoever starts the processes (torchrun) tells each its number in the environment; this file and the command line are the
only ones that read it. A process that was started alone makes no process group and pays for none.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from ..datastores.interrupt import Terminated, allowed, taken
from ..errors import ConfigError, RankError, ShapeError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

__all__ = ["ALONE", "Place", "Ranks", "find_place", "interrupt_code", "joined", "raise_interrupt"]

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Where the ranks meet: one for all groups of a process, since its port is not free again before that ends.
_STORES: dict["Place", "Store"] = {}

#: What an interrupt is called between ranks; the highest one counts.
_INTERRUPTS: tuple[type[KeyboardInterrupt] | None, ...] = (None, KeyboardInterrupt, Terminated)


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the processes of a run this one is.

    Args:
        rank: its number, 0 <= rank < world_size.
        world_size: how many there are.
        local_rank: its number among those of this machine; None: nobody said.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


#: The place of a process that was started alone.
ALONE = Place()


def find_place() -> Place:
    """Return this process's place: that in the process group if there is one, else what the environment says.

    Raises:
        ConfigError: the environment says it in part only, or contradicts itself.
    """
    local_rank = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else None
    if dist.is_available() and dist.is_initialized():
        if local_rank is None and torch.cuda.is_available():
            local_rank = torch.cuda.current_device()  # whoever makes a group chooses the GPU as well
        return Place(dist.get_rank(), dist.get_world_size(), local_rank)
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return ALONE
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise ConfigError(
            f"the environment has {_listed(name for name in _NEEDED if name not in missing)}, but lacks "
            f"{_listed(missing)}: start the script with torchrun, which sets all of them, or unset them"
        )
    place = Place(_number("RANK"), _number("WORLD_SIZE"), local_rank)
    if not 0 <= place.rank < place.world_size:
        raise ConfigError(
            f"the environment says RANK={place.rank} and WORLD_SIZE={place.world_size}: ranks count from 0"
        )
    return place


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise ConfigError(f"the environment says {name}={text!r}: it must be a whole number, as torchrun sets it")
    return int(text)


def _listed(names: Any) -> str:
    return ", ".join(names)


class Ranks:
    """The processes of a run, as one of them sees them. Each method but the first two must be called by all of them.

    Args:
        place: which one this is.
        host_group: carries numbers in host memory; None: the default group.

    Attributes:
        rank: its number.
        size: how many there are.
        is_alone: there is one; then nothing is sent and nothing is waited for.
    """

    def __init__(self, place: Place, host_group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size = place.rank, place.world_size
        self.is_alone = self.size == 1
        self._place = place
        self._host_group = host_group

    def interrupts(self) -> AbstractContextManager[None]:
        """Return a context that lets interrupts through at any point, unless another rank would wait for this one."""
        return allowed() if self.is_alone else nullcontext()

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Say, when a collective in this block fails, that it was because of another rank.

        Raises:
            RankError: it failed.
        """
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RankError(
                f"{self._place} lost another rank while it {what} ({str(error).splitlines()[0]}): that rank died, left "
                "the run or did not answer in time, and its own error says why"
            ) from error

    def poll(self) -> None:
        """Let an interrupt through that was put off on any rank.

        Raises:
            KeyboardInterrupt: there was one (``Terminated`` after SIGTERM); on all ranks.
        """
        if self.is_alone:
            with allowed():
                return
        (code,) = self.highest([interrupt_code()])
        raise_interrupt(code)

    def highest(self, codes: Sequence[int]) -> list[int]:
        """Return the highest value that any rank has, for each of ``codes``; the device is not waited for."""
        if self.is_alone:
            return list(codes)
        numbers = torch.tensor(codes, dtype=torch.int64)
        with self.telling("waited at the end of a step"):
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._host_group)
        return [int(number) for number in numbers.tolist()]

    def check_same(self, facts: Mapping[str, object]) -> None:
        """Compare what must be the same on all ranks.

        Args:
            facts: name -> anything whose ``repr`` says all of it.

        Raises:
            ConfigError: something differs; on all ranks.
        """
        digests = [_digest(fact) for fact in facts.values()]
        highest = self.highest([*digests, *(-digest for digest in digests)])
        pairs = zip(highest[: len(digests)], highest[len(digests) :], strict=True)
        differing = [name for name, (most, least) in zip(facts, pairs, strict=True) if most != -least]
        if differing:
            shown = "; ".join(f"{name}: here {str(facts[name])[:300]}" for name in differing)
            raise ConfigError(
                f"the ranks do not agree about the run, here on {self._place} ({shown}): give all of them the same "
                "data and settings, and a folder of checkpoints that all of them can read"
            )

    def sum_(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to replace ``tensor`` by its sum over all ranks, and return what waits for it.

        Work that is queued on a GPU waits, not the host. All ranks begin their sums in the same order.
        """
        if self.is_alone:
            return lambda: None
        with self.telling("began to add up"):
            work = dist.all_reduce(tensor, async_op=True)
        return partial(self._wait_for, work)

    def _wait_for(self, work: dist.Work) -> None:
        with self.telling("added up"):
            work.wait()

    @torch.no_grad()
    def share_first(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give all ranks the values that rank 0 has of ``tensors``, in place."""
        if self.is_alone:
            return
        kinds: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for alike in kinds.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            with self.telling("waited for rank 0's values"):
                dist.broadcast(flat, 0)
            parts = flat.split([tensor.numel() for tensor in alike])
            torch._foreach_copy_(alike, [part.view(tensor.shape) for part, tensor in zip(parts, alike, strict=True)])

    def values_of_first(self, values: Sequence[float]) -> list[float]:
        """Return rank 0's ``values``; every rank has as many."""
        if self.is_alone:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64)
        with self.telling("waited for rank 0's values"):
            dist.broadcast(numbers, 0, group=self._host_group)
        return [float(number) for number in numbers.tolist()]

    def merged(self, value: Any) -> Any:
        """Return ``value`` with the rows of all ranks, in the order of ranks, on every rank.

        Args:
            value: a tensor (n, ...), or a tuple, list or mapping of such; n may differ between ranks, the rest must
                not. Other objects stay as they are.

        Raises:
            ShapeError: the rows of the ranks have other shapes; on all ranks.
        """
        if self.is_alone or not (tensors := _tensors(value)):
            return value
        mine = torch.tensor([(len(tensor), _row_bytes(tensor)) for tensor in tensors], dtype=torch.int64)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with self.telling("collected outputs"):
            dist.all_gather(found, mine, group=self._host_group)
        counts = torch.stack(found)
        if (counts[:, :, 1] != mine[:, 1]).any():
            raise ShapeError(f"the model's outputs or targets have other shapes on other ranks than on {self._place}")
        whole = [self._rows_of_all(tensor, counts[:, number, 0].tolist()) for number, tensor in enumerate(tensors)]
        return _with_tensors(value, iter(whole))

    def _rows_of_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Bytes are sent, so any dtype will do; each rank sends as many rows as the longest part has."""
        width = math.prod(tensor.shape[1:])
        rows = tensor.new_zeros(max(counts), width)
        rows[: len(tensor)] = tensor.detach().reshape(len(tensor), width)
        sent = rows.view(torch.uint8)
        parts = [torch.empty_like(sent) for _ in counts]
        with self.telling("collected outputs"):
            dist.all_gather(parts, sent)
        whole = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return whole.view(tensor.dtype).reshape(sum(counts), *tensor.shape[1:])


def interrupt_code() -> int:
    """Return which interrupt was put off here, as a number for other ranks, and forget it."""
    return _INTERRUPTS.index(taken())


def raise_interrupt(code: int) -> None:
    """Raise the interrupt that ``code`` stands for, if it does for any."""
    interrupt = _INTERRUPTS[code]
    if interrupt is not None:
        raise interrupt


@contextmanager
def joined(place: Place, device: torch.device, timeout: float) -> Iterator[Ranks]:
    """Join the other ranks, through the process group that there is, or else through one that ends with this block.

    Args:
        place: of this process.
        device: where its model computes.
        timeout: seconds that it waits for another rank before it gives up; a group that is there has its own.

    Raises:
        RankError: the others did not come.
    """
    if place.world_size == 1:
        yield Ranks(place)
        return
    if dist.is_initialized():
        with _host_group(timeout) as group:
            yield Ranks(place, group)
        return
    from torch.distributed.distributed_c10d import PrefixStore  # not a part of every build of torch

    on_gpu = device.type == "cuda"
    with Ranks(place).telling("waited for all of them to come"):
        wait = timedelta(seconds=timeout)
        store = _store(place, wait)
        # the stale keys of a group before this one would lead nowhere
        number = store.add(f"headrace/groups of rank {place.rank}", 1)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=PrefixStore(f"headrace/{number}", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=wait,
            device_id=device if on_gpu else None,
        )
    try:
        yield Ranks(place)
    except BaseException:
        # NCCL would wait for work that other ranks have no part in any more, and they for this one
        cast("dist.ProcessGroup", dist.group.WORLD).abort()
        raise
    finally:
        dist.destroy_process_group()


def _store(place: Place, wait: timedelta) -> "Store":
    from torch.distributed.rendezvous import rendezvous

    if place not in _STORES:
        _STORES[place], _, _ = next(rendezvous("env://", rank=place.rank, world_size=place.world_size, timeout=wait))
    return _STORES[place]


@contextmanager
def _host_group(timeout: float) -> Iterator[dist.ProcessGroup | None]:
    """A group for numbers in host memory, where the default one knows GPUs only."""
    if "cpu:" in dist.get_backend_config():
        yield None
        return
    group = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout)))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def _digest(fact: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(fact).encode()).digest()[:7], "little")


def _row_bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for part in value.values() for tensor in _tensors(part)]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _with_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """``value`` with other tensors in the places of its own, in the order of ``_tensors``."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {name: _with_tensors(part, tensors) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_with_tensors(part, tensors) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value
