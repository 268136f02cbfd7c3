from __future__ import annotations

import torch
from torch import Tensor, nn

import pflego
from pflego.learning.heads.fit import fit_head
from pflego.learning.problems import Problems


class Steep(nn.Module):
    """z = w^4 phi: flat near zero, where 1/L is huge, and steep elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.3))

    def forward(self, phi: Tensor) -> Tensor:
        return self.w**4 * phi


def test_where_steps_go_uphill_they_are_tried_again_with_less() -> None:
    x = torch.ones(5, 1, dtype=torch.float64)
    federation = pflego.Federation([pflego.Client(0, x, 16 * x)])  # the answer: w = 2
    model = pflego.Model(nn.Identity(), 1, head=lambda features, outputs: Steep())
    problem = Problems(federation, model)[0]
    head = {"head.w": torch.tensor(0.3, dtype=torch.float64)}
    rate, w = 1 / problem.head_smoothness(head, x), torch.tensor(0.3, dtype=torch.float64)
    for _ in range(100):
        w = w - rate * 4 * w**3 * (w**4 - 16)
    assert not (w**4 - 16) ** 2 <= (0.3**4 - 16) ** 2  # with 1/L as it is at first, the loss rises
    assert abs(float(fit_head(problem, head, x)["head.w"]) - 2) < 1e-3


def test_a_head_that_cannot_get_better_is_left_alone() -> None:
    x = torch.zeros(4, 2, dtype=torch.float64)
    federation = pflego.Federation([pflego.Client(0, x, torch.tensor([0, 1, 0, 1]))])
    problem = Problems(federation, pflego.Model(nn.Identity(), 2))[0]
    head = {"head": torch.zeros(2, 3, dtype=torch.float64)}
    assert torch.equal(fit_head(problem, head, x)["head"], head["head"])
