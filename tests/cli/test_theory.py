from __future__ import annotations

import json
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from typer.testing import CliRunner

import pflego
from pflego.cli import app
from pflego.exchange import budget
from pflego.training.convergence import SquaredGradients, measure
from tests.support.reference import gradients, world


def test_the_rate_of_corollary_1_is_measured_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "rate.png"
    options = ["--clients", "4", "--classes-per-client", "3", "--steps", "5", "--horizons", "16,4"]
    result = CliRunner().invoke(
        app, ["theory", "rate", *options, "--out", str(picture)], catch_exceptions=False
    )
    assert result.exit_code == 0
    first, second = json.loads(picture.with_suffix(".json").read_text())
    assert (first["rounds"], second["rounds"]) == (4, 16)
    assert second["server_lr"] == pytest.approx(first["server_lr"] / 2)
    for point in (first, second):  # eq. of the appendix, I = r = 4
        assert 0 < point["squared_gradient"] < point["bound"]
        right = point["smoothness"] * point["first_loss"] + point["largest_gradient"] ** 2
        assert point["bound"] == pytest.approx(right / point["rounds"] ** 0.5)
        assert point["server_lr"] == pytest.approx(1 / (point["smoothness"] * point["rounds"] ** 0.5))
        assert point["first_loss"] == pytest.approx(np.log(3), rel=1e-6)  # heads of zeros, three classes each
    assert "L = " in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_budget_of_privacy_is_planned_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "privacy.png"
    options = ["--clients", "200", "--epsilon", "3", "--rounds", "6", "--participation", "0.5,0.05"]
    result = CliRunner().invoke(
        app, ["theory", "privacy", *options, "--out", str(picture)], catch_exceptions=False
    )
    assert result.exit_code == 0
    plan = json.loads(picture.with_suffix(".json").read_text())
    assert plan["delta"] == pytest.approx(0.1 / 200)
    assert [(one["rounds"], one["participants"]) for one in plan["options"]] == [(6, 10), (6, 100)]
    for one in plan["options"]:
        library = PLDAccountant()
        gaussian = dp_accounting.GaussianDpEvent(one["noise"])
        library.compose(dp_accounting.PoissonSampledDpEvent(one["chance"], gaussian), one["rounds"])
        assert library.get_epsilon(plan["delta"]) == pytest.approx(3, rel=0.005)
    assert picture.read_bytes().startswith(b"\x89PNG")
    words = result.output.split("for instance: pflego ")[1].split("\n")[0].split()
    run = CliRunner().invoke(app, [*words, "--clients", "200", "--out", str(tmp_path / "run")])
    assert run.exit_code == 0, run.output
    assert "epsilon 3 at delta 0.0005" in run.output
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 6


@pytest.mark.thorough
def test_a_fixed_number_of_participants_is_planned_by_its_own_accountant(tmp_path: Path) -> None:
    [one] = budget.options(100, epsilon=8, delta=1e-3, rounds=[10], chances=[0.2], fixed=True)
    library = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(one.noise / 2)
    library.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, 20, gaussian), 10)
    assert library.get_epsilon(1e-3) == pytest.approx(8, rel=0.005)
    for wrong in (["--rounds", "0"], ["--participation", "1.5"], ["--rounds", "many"], ["--delta", "2"]):
        words = ["theory", "privacy", "--clients", "9", "--epsilon", "1", *wrong]
        assert CliRunner().invoke(app, [*words, "--out", str(tmp_path / "no.png")]).exit_code != 0


def test_the_smallest_participation_near_the_least_noise_is_advised() -> None:
    found = [
        budget.Option(rounds, chance, 100 * chance, noise, noise / (100 * chance))
        for rounds, chance, noise in [
            (5, 0.1, 1.0),
            (9, 0.1, 1.5),
            (9, 0.2, 2.4),
            (9, 0.5, 5.0),
            (9, 1.0, 10.0),
        ]
    ]
    assert budget.advised(found).chance == 0.2


@pytest.mark.parametrize("common", [False, True], ids=["own heads", "common head"])
def test_gradients_are_all_clients_before_every_round_with_fitted_heads(common: bool) -> None:
    """The corollary's average begins at theta_0 and leaves out theta_T."""
    twin = world()
    W_0 = np.zeros((twin.federation.outputs, 5))
    watcher = SquaredGradients()
    algorithm = pflego.PFLEGO(
        steps=4, client_lr=0.2, server_lr=0.3, server_optimizer="sgd", common_head=common, head_decay=0.1,
        head_init="zeros",
    )  # fmt: skip
    settings = {"participation": 2, "evaluate_every": 0}
    pflego.train(twin.federation, twin.model, algorithm, rounds=3, callbacks=[watcher], **settings)  # type: ignore[arg-type]
    assert len(watcher.values) == 3
    longest = 0.0
    for done, squared in enumerate(watcher.values):
        if done:
            run = pflego.train(twin.federation, twin.model, algorithm, rounds=done, **settings)  # type: ignore[arg-type]
            twin.net.V, twin.net.v = run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy()
            twin.heads = [run.states[f"c{i}"]["head"].numpy() for i in range(len(twin.sites))]
            W_0 = run.shared["head"].numpy() if common else W_0
        total = [np.zeros_like(twin.net.V), np.zeros_like(twin.net.v), np.zeros_like(W_0)]
        for i, (site, own, alpha) in enumerate(zip(twin.sites, twin.heads, twin.alphas, strict=True)):
            base = W_0[twin.rows(i)] if common else 0.0
            for _ in range(3):
                own = own - 0.2 * (gradients(twin.net, base + own, site)[2] + 0.1 * own)
            dV, dv, dW = gradients(twin.net, base + own, site)
            mine = [dV, dv, np.zeros_like(W_0)]
            if common:
                mine[2][twin.rows(i)] = dW
            longest = max(longest, sum(np.sum(np.square(g)) for g in mine) ** 0.5)
            total = [t + alpha * g for t, g in zip(total, mine, strict=True)]
        assert squared == pytest.approx(sum(np.sum(np.square(g)) for g in total), rel=1e-10)
    assert watcher.largest == pytest.approx(longest, rel=1e-10)


def test_heads_that_are_solved_for_have_a_rate_too_and_several_passes_none() -> None:
    twin = world()
    [point] = measure(
        twin.federation,
        twin.model,
        pflego.PFLEGO(head_optimizer="solve", common_head=True),
        horizons=[2],
        participation=pflego.Fixed(2),
    )
    assert 0 < point.squared_gradient < point.bound
    for moving_at_home in (pflego.PFLEGO(passes=2), pflego.PFLEGO(batch_size=4)):
        with pytest.raises(pflego.SettingError, match="passes"):
            measure(
                twin.federation,
                twin.model,
                moving_at_home,
                horizons=[2],
                participation=pflego.Fixed(2),
            )


@pytest.mark.parametrize("horizons", ["ten", "0,5", ""])
def test_horizons_must_be_numbers_of_rounds(horizons: str) -> None:
    with pytest.raises(pflego.UserError, match="--horizons"):
        CliRunner().invoke(app, ["theory", "rate", "--horizons", horizons], catch_exceptions=False)
