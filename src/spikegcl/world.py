"""The processes that train or embed together: who they are, and what they tell each other.

A process that torchrun started belongs to a world of as many as were asked for; any other is a world of its own, where
nothing here has an effect. Processes talk through torch.distributed: gloo between CPUs, nccl between GPUs.
"""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn  # before any group: one that it finds at its import it keeps, threads and all
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

T = TypeVar("T")

PATIENCE = timedelta(minutes=30)  # how long a process waits for the others: probing may take rank 0 that long


def rank() -> int:
    """The number of this process; 0 logs, prints and writes."""
    return dist.get_rank() if _joined() else 0


def size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if _joined() else 1


def share(count: int) -> range:
    """Which of ``count`` parts are this process's."""
    return range(rank(), count, size())


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Belong, inside, to the world that torchrun's environment names; each process of a host has a GPU of its own."""
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store, own, count = next(rendezvous("env://", timeout=PATIENCE))
    # torchrun's store outlives the processes: those it starts again must not find the addresses of the dead.
    attempt = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, store=attempt, rank=own, world_size=count, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def add_up(tensors: Iterable[Tensor]) -> None:
    """In place: every tensor becomes the sum of those of all processes."""
    if _joined():
        for tensor in tensors:
            dist.all_reduce(tensor)


def from_first(function: Callable[[], T]) -> T:
    """What ``function`` gives in process 0; the others do not call it."""
    if not _joined():
        return function()
    value = [function() if rank() == 0 else None]
    dist.broadcast_object_list(value, src=0)
    return value[0]  # type: ignore[return-value]


def wait_for_all() -> None:
    """Go on when every process has come here."""
    if _joined():
        dist.barrier()


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()
