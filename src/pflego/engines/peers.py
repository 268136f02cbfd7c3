"""Several processes that train one run together, as torchrun starts them.

All of them are given the same and draw the same, so they agree on everything without a word, but for what only one
of them knows: the sum of the messages, a figure, the name of a folder. That is what is said here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pflego.errors import UserError

T = TypeVar("T")

_SILENCE = timedelta(minutes=30)  # after which another process is given up
_PATIENCE = 2.0  # seconds that who only lost another lets it say why
_groups = count()


class PeerError(UserError):
    """Another process of the run has ended, or does not answer."""


class Peers:
    """The processes of a run. As it stands here: this one and no other."""

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """Whether it is this process that writes, and speaks to people."""
        return self.rank == 0

    def add(self, tensor: Tensor) -> None:
        """Make a tensor the sum of everybody's, the same to the last digit for all."""

    def gather(self, value: T) -> list[T]:
        """Give everybody's values, by rank. Nobody goes on before all are here."""
        return [value]

    @contextmanager
    def one_first(self) -> Iterator[None]:
        """Let one process per machine go first, the others when it is done: what it fetches, they find."""
        yield


class _Torchrun(Peers):
    """The processes of torch's default group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def add(self, tensor: Tensor) -> None:
        with _answering():
            dist.all_reduce(tensor)

    def gather(self, value: T) -> list[T]:
        values: list[T] = [value] * self.size
        with _answering():
            dist.all_gather_object(values, value)
        return values

    @contextmanager
    def one_first(self) -> Iterator[None]:
        leads = int(os.environ.get("LOCAL_RANK", self.rank)) == 0
        if not leads:
            self.gather(None)
        yield
        if leads:
            self.gather(None)


@contextmanager
def joined(together: bool) -> Iterator[Peers]:
    """Join the processes that torchrun started, for as long as this lasts; or stay alone.

    A group that is there already is used, and left as it is.
    """
    if not together:
        yield Peers()
    elif dist.is_initialized():
        yield _Torchrun()
    else:
        threads = torch.get_num_threads()
        try:
            _join()
            peers = _Torchrun()
            yield peers
            peers.gather(None)  # nobody hangs up while another listens
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            torch.set_num_threads(threads)


def check_alone(instead: str) -> None:
    """Refuse to be one of several processes that know nothing of each other; say what to do instead."""
    if "TORCHELASTIC_RUN_ID" in os.environ and (size := int(os.environ["WORLD_SIZE"])) > 1:
        raise UserError(f"torchrun has started {size} processes: {instead}")


def speaks(error: UserError) -> bool:
    """Tell whether this process should say what went wrong: of those that torchrun started, the first to ask.

    One that only lost another lets it speak first.
    """
    try:
        if isinstance(error, PeerError):
            time.sleep(_PATIENCE)
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=_PATIENCE)))
        return bool(store.add("pflego/spoken", 1) == 1)
    except RuntimeError:  # torchrun is gone too
        return not isinstance(error, PeerError)


def _join() -> None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise UserError(
            "the engine 'distributed' is for processes that torchrun starts: "
            "torchrun --nproc-per-node 2 -m pflego run --engine distributed ... (a process alone: --engine local)"
        )
    side_by_side = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))  # on this machine
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(min(torch.get_num_threads(), max(1, cores // side_by_side)))
    backend = "gloo"
    if torch.cuda.is_available() and torch.cuda.device_count() >= side_by_side:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    with _answering():
        store, rank, size = next(rendezvous("env://", timeout=_SILENCE))
        dist.init_process_group(
            backend,
            # a place of its own in torchrun's store, where a group before this one has left its addresses
            store=PrefixStore(f"pflego/{next(_groups)}", store),
            rank=rank,
            world_size=size,
            timeout=_SILENCE,
        )


@contextmanager
def _answering() -> Iterator[None]:
    """Say plainly that a process is gone."""
    try:
        yield
    except RuntimeError as error:  # torch has no kind of its own for it
        raise PeerError("another process of this run has ended, or does not answer") from error
