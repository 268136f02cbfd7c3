"""What rounds cost, against dp-accounting called by itself and against formulas."""

from __future__ import annotations

import sys
from math import inf, sqrt

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import norm as normal

import pflego
from pflego.exchange import accountant as accounting
from pflego.exchange.accountant import Accountant, Sampling, noise_for, sampling_of
from pflego.runs.plan import Plan
from pflego.runs.privacy import accountant_of
from tests.support.cases import often
from tests.support.reference import world

HUNDRED = range(100)


@pytest.mark.parametrize(
    ("chance", "noise", "rounds", "known"),
    [
        pytest.param(0.2, 1.0, 200, 16.4, marks=pytest.mark.thorough),
        (0.2, 4.0, 200, 2.1),
        (0.01, 1.0, 200, 0.49),
    ],
)
def test_poisson_sampling_costs_what_dp_accounting_says(
    chance: float, noise: float, rounds: int, known: float
) -> None:
    library = PLDAccountant()
    library.compose(dp_accounting.PoissonSampledDpEvent(chance, dp_accounting.GaussianDpEvent(noise)), rounds)
    ours = Accountant(sampling_of(pflego.Binomial(chance), HUNDRED), noise, 1e-3).epsilon(rounds)
    assert ours == pytest.approx(library.get_epsilon(1e-3), abs=2e-3)
    assert ours == pytest.approx(known, abs=0.05)


def test_everyone_in_every_round_is_one_gaussian() -> None:
    """T Gaussian mechanisms of deviation z are one of z / sqrt(T), whose delta has a formula (Balle and Wang, 2018)."""

    def delta(epsilon: float, shift: float) -> float:
        low, high = -epsilon / shift + shift / 2, -epsilon / shift - shift / 2
        return float(normal.cdf(low) - np.exp(epsilon) * normal.cdf(high))

    for noise, rounds in [(5.0, 10), (20.0, 100), (2.0, 1)]:
        shift = sqrt(rounds) / noise
        exact = brentq(lambda e, s=shift: delta(e, s) - 1e-5, 1e-6, 100)
        for process in (pflego.Everyone(), pflego.Fixed(100), pflego.Between(100, 100)):
            ours = Accountant(sampling_of(process, HUNDRED), noise, 1e-5).epsilon(rounds)
            assert exact <= ours <= exact + 5e-3


def test_a_fixed_number_is_sampled_without_replacement_and_one_client_replaces_another() -> None:
    """Replaced, a client moves the sum by up to twice the clip: half the noise."""
    library = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(4.0 / 2)
    library.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, 20, gaussian), 200)
    ours = Accountant(sampling_of(pflego.Fixed(20), HUNDRED), 4.0, 1e-3)
    assert ours.epsilon(200) == pytest.approx(library.get_epsilon(1e-3), rel=1e-9)
    assert ours.sampling.neighbours == "replacing one client by another"
    # with all of the noise it would be the 5.65 that the promise for adding and removing seems to allow
    assert ours.epsilon(200) > 2 * 5.65


def test_processes_are_taken_at_their_costliest() -> None:
    own = pflego.Independent({str(i): 0.01 * (i + 1) for i in range(20)})
    assert sampling_of(own, [str(i) for i in range(20)]) == Sampling(0.2)
    assert sampling_of(pflego.Daily(0.05, 0.4), HUNDRED) == Sampling(0.4)
    assert sampling_of(pflego.Between(5, 30), HUNDRED) == Sampling(0.3, (30, 100))
    with pytest.raises(pflego.SettingError, match="no accountant"):
        sampling_of(pflego.Estimated(pflego.Binomial(0.1)), HUNDRED)


def test_a_larger_chance_and_more_rounds_cost_more_and_noise_less() -> None:
    def cost(chance: float = 0.1, noise: float = 1.0, rounds: int = 20) -> float:
        return Accountant(Sampling(chance), noise, 1e-5).epsilon(rounds)

    assert cost() < cost(chance=0.2) < cost(chance=0.2, rounds=40)
    assert cost() > cost(noise=2.0) > 0
    assert cost(rounds=0) == 0
    assert cost(noise=0.0) == inf


@pytest.mark.parametrize("sampling", often([Sampling(0.1), Sampling(0.2, (20, 100))]))
def test_the_rounds_and_the_noise_that_can_be_afforded(sampling: Sampling) -> None:
    accountant = Accountant(sampling, 3.0, 1e-5)
    most = accountant.most_rounds(2.0, 500)
    assert accountant.epsilon(most) <= 2.0 < accountant.epsilon(most + 1)
    assert accountant.most_rounds(2.0, most) == most
    assert accountant.most_rounds(1e-9, 500) == 0
    noise = noise_for(sampling, epsilon=2.0, delta=1e-5, rounds=50)
    assert Accountant(sampling, noise, 1e-5).epsilon(50) <= 2.0
    assert Accountant(sampling, noise * 0.998, 1e-5).epsilon(50) > 2.0


def test_sums_of_the_same_cohort_are_one_release_of_less_noise() -> None:
    """FedDANE sums twice per round: PoissonSampled(q, two Gaussians)."""
    plan = Plan(rounds=30, participation=pflego.Binomial(0.2), privacy=pflego.ClientPrivacy(noise=2.0))
    accountant = accountant_of(plan, pflego.FedDane(), world().federation)
    assert accountant is not None
    library = RdpAccountant()
    twice = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0)] * 2)
    library.compose(dp_accounting.PoissonSampledDpEvent(0.2, twice), 30)
    assert accountant.noise == pytest.approx(sqrt(2.0))
    # RDP is looser than PLD, by a few hundredths here, and both know that it is one sample
    assert 0.85 * library.get_epsilon(1e-5) < accountant.epsilon(30) <= library.get_epsilon(1e-5)


def test_clients_that_joined_later_count_as_not_there() -> None:
    plan = Plan(rounds=3, participation=pflego.Fixed(2), privacy=pflego.ClientPrivacy(), joined_after=[1, 2])
    accountant = accountant_of(plan, pflego.PFLEGO(), world(clients=6).federation)
    assert accountant is not None
    assert accountant.sampling == Sampling(0.5, (2, 4))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    accounting._library.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(pflego.MissingExtraError, match=r"pflego\[privacy\]"):
        Accountant(Sampling(0.123), 1.0, 1e-5).epsilon(1)
    assert Accountant(Sampling(0.123), 0.0, 1e-5).epsilon(1) == inf
