"""Whom to ask more often."""

from __future__ import annotations

import numpy as np
import pytest

import pflego
from tests.support.reference import gradients, world


def test_chances_are_in_proportion_to_what_clients_have_to_say() -> None:
    """One joint gradient each, at first heads of zeros that were made random; by hand where nothing is clipped."""
    twin = world()
    algorithm = pflego.PFLEGO(steps=1, server_lr=0.01, server_optimizer="sgd")
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=3, evaluate_every=None)
    before = {client: state["head"].clone() for client, state in run.states.items()}
    found = pflego.best_sampling(run, expected=1.2, least=0.001)
    assert all((run.states[client]["head"] == head).all() for client, head in before.items())

    twin.net.V, twin.net.v = run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy()
    parts = [gradients(twin.net, run.states[f"c{i}"]["head"].numpy(), s) for i, s in enumerate(twin.sites)]
    norms = [
        a * np.sqrt((dV**2).sum() + (dv**2).sum()) for a, (dV, dv, _) in zip(twin.alphas, parts, strict=True)
    ]
    wanted = 1.2 * np.array(norms) / sum(norms)
    assert wanted.max() < 1
    chances = found.participation.chances(twin.federation.ids, number=1, seed=0)
    assert chances == pytest.approx(wanted, rel=1e-8)
    assert found.variance == pytest.approx(((1 / wanted - 1) * np.square(norms)).sum(), rel=1e-8)
    assert found.equal == pytest.approx(((5 / 1.2 - 1) * np.square(norms)).sum(), rel=1e-8)
    assert 0 < found.saved < 1
    assert found.variance < found.equal


@pytest.mark.parametrize(("expected", "least"), [(6, 0.01), (0.01, 0.01), (2, 0.9), (-1, 0.1), (1, 0)])
def test_chances_that_cannot_be_are_refused(expected: float, least: float) -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=1), rounds=1)
    with pytest.raises(pflego.SettingError, match=r"expected|least"):
        pflego.best_sampling(run, expected=expected, least=least)
