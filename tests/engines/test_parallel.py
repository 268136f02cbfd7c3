from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.engines.parallel import map_in_threads
from tests.support.cases import often
from tests.support.reference import assert_identical

CPU = torch.device("cpu")
LARGE = 1e12


@pytest.fixture
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def where(_: int) -> tuple[int, int]:
    time.sleep(0.01)
    return threading.get_ident(), torch.get_num_threads()


@pytest.mark.usefixtures("two_cores")
def test_a_worker_has_its_share_of_the_cores() -> None:
    found = map_in_threads(where, range(8), size=LARGE, device=CPU)
    assert {cores for _, cores in found} == {1}
    assert len({thread for thread, _ in found}) == 2
    assert threading.get_ident() not in {thread for thread, _ in found}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_cores")
def test_threads_made_later_have_all_the_cores() -> None:
    map_in_threads(where, range(4), size=LARGE, device=CPU)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [2]


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("items", "size", "device"), [(1, LARGE, "cpu"), (4, 10.0, "cpu"), (4, LARGE, "meta"), (0, LARGE, "cpu")]
)
def test_what_gains_nothing_by_threads_has_none(items: int, size: float, device: str) -> None:
    found = map_in_threads(where, range(items), size=size, device=torch.device(device))
    assert [thread for thread, _ in found] == [threading.get_ident()] * items


@pytest.mark.usefixtures("two_cores")
def test_results_are_in_the_order_of_the_items() -> None:
    def slow_first(item: int) -> int:
        time.sleep(0.02 / (1 + item))
        return item * item

    assert map_in_threads(slow_first, range(9), size=LARGE, device=CPU) == [i * i for i in range(9)]


@pytest.mark.usefixtures("two_cores")
def test_after_an_error_nothing_new_is_begun() -> None:
    begun: list[int] = []

    def fail(item: int) -> None:
        begun.append(item)
        time.sleep(0.005)
        if item == 1:
            raise RuntimeError(f"item {item}")

    with pytest.raises(RuntimeError, match="item 1"):
        map_in_threads(fail, range(200), size=LARGE, device=CPU)
    running = len(begun)
    time.sleep(0.05)
    assert len(begun) == running < 200


@pytest.mark.usefixtures("two_cores")
def test_workers_are_in_the_context_of_their_caller() -> None:
    seen = ContextVar("seen", default=0)
    seen.set(7)
    assert map_in_threads(lambda _: seen.get(), range(4), size=LARGE, device=CPU) == [7] * 4


class Wide(nn.Module):
    """A backbone large enough to be worth threads, with a buffer and nested layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(300, 250), nn.Tanh(), nn.Linear(250, 8))
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.tanh(self.layers(x) + self.shift)
        return y


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    "head", often([None, lambda m, k: nn.Sequential(nn.Linear(m, 6), nn.Tanh(), nn.Linear(6, k))])
)
@pytest.mark.parametrize("method", often([pflego.PFLEGO, pflego.FedAvg, pflego.Ditto]))
def test_a_run_in_threads_is_the_run_without_them(
    method: type[pflego.Algorithm], head: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    fed = pflego.Federation(
        [
            pflego.Client(i, rng.normal(size=(n, 300)).astype(np.float32), np.arange(n) % 3,
                          rng.normal(size=(9, 300)).astype(np.float32), np.arange(9) % 3)
            for i, n in enumerate([300, 280, 260, 310, 270])
        ]
    )  # fmt: skip
    torch.manual_seed(0)
    model = pflego.Model(Wide(), features=8, head=head)  # type: ignore[arg-type]
    names = set()
    original = Wide.forward

    def seen(self: Wide, x: torch.Tensor) -> torch.Tensor:
        names.add(threading.current_thread().name.split("_")[0])
        return original(self, x)

    monkeypatch.setattr(Wide, "forward", seen)
    threaded = pflego.train(fed, model, method(steps=3), rounds=3, evaluate_every=1)  # type: ignore[call-arg]
    assert "pflego" in names
    torch.set_num_threads(1)
    alone = pflego.train(fed, model, method(steps=3), rounds=3, evaluate_every=1)  # type: ignore[call-arg]
    assert_identical(threaded, alone)
