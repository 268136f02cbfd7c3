from __future__ import annotations

import threading

import torch
from torch import nn

from pflego.learning.stateless import Stateless


def test_every_thread_sees_its_own_weights() -> None:
    function = Stateless(nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh()))
    x = torch.eye(3)
    wrong: list[int] = []

    def call(number: int) -> None:
        weights = {"0.weight": torch.full((3, 3), number / 10)}
        if not all(torch.equal(function(weights, x), torch.tanh(weights["0.weight"].T)) for _ in range(300)):
            wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_other_threads_share_the_tensors_of_the_module() -> None:
    module = nn.BatchNorm1d(2, affine=False).eval()
    function = Stateless(module)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(function({}, torch.ones(1, 2))))
    module.get_buffer("running_mean").fill_(3)
    thread.start()
    thread.join()
    torch.testing.assert_close(seen[0], torch.full((1, 2), -2.0))


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Linear(2, 2)
    before = module.weight.detach().clone()
    Stateless(module)({"weight": torch.zeros(2, 2)}, torch.ones(1, 2))
    assert torch.equal(module.weight, before)
