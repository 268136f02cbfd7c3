"""Several clients at a time: a thread for each, which gets its share of torch's cores.

One client's products are too small to be worth spreading over cores: two clients side by side, on a core each, are
faster than one after the other on both. torch releases Python's lock while it computes, so threads are enough, and
data and weights are not copied. Results do not depend on who works beside whom. What is done in a few milliseconds
is done without threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


_WORTH_IT = 1e8  # multiplications, about a hundredth of a second's


def map_in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], *, size: float, device: torch.device
) -> list[Result]:
    """Do the work for every item; results in the order of the items.

    As many work side by side as torch has threads here; only one on any other device than the CPU, and where the
    whole work's size, a rough number of multiplications, is small. After an error nothing new is begun, what runs is
    awaited, and the first error in the order of items is raised.
    """
    cores = torch.get_num_threads()
    side_by_side = min(len(items), cores)
    if side_by_side <= 1 or device.type != "cpu" or size < _WORTH_IT:
        return [work(item) for item in items]

    def share(item: Item) -> Result:
        torch.set_num_threads(cores // side_by_side)  # of this thread alone
        return work(item)

    futures = [_pool(side_by_side).submit(copy_context().run, share, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
        torch.set_num_threads(cores)  # what threads made from now on begin with


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="pflego")
