"""Batch norm and dropout: the rules, what stands for a layer, and what is refused."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pflego
from pflego import Model, ModelError
from pflego.engines import parallel
from pflego.learning.modes import NORMS
from pflego.models import with_group_norm

X = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])


class Inside(nn.Module):
    """Draws by a function, not by a layer, beside a layer that does it as it should."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(2, 2), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.dropout(self.layer(x)), 0.5, training=self.training)


def normed(**how: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, **how), nn.Linear(4, 2))


@pytest.mark.parametrize("norm", ["frozen", "personal", "averaged"])
def test_features_are_those_of_evaluation_mode_whatever_mode_a_module_is_in(norm: Any) -> None:
    module = normed()
    module(torch.randn(20, 2))  # statistics that are not the first
    model = Model(module.train(), 2, norm=norm)
    model.check(X)
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    features = model.phi(model.weights(), X)
    assert module.training
    assert torch.equal(features, module.eval()(X))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_in_training_a_layer_does_what_pytorchs_does() -> None:
    module, x = normed(momentum=0.3), torch.randn(8, 2)
    model = Model(module, 2, norm="averaged")
    weights = model.weights()
    features = model.phi_in_training(weights, x, None)
    torch.testing.assert_close(features, module.train()(x))  # which moves its own statistics
    assert model.statistics == ("1.running_mean", "1.running_var")
    for name in model.statistics:
        torch.testing.assert_close(weights[name], module.state_dict()[name])


def test_statistics_of_half_precision_move_too() -> None:
    model = Model(normed().bfloat16(), 2, norm="averaged")
    weights = model.weights()
    assert weights["1.running_mean"].dtype == torch.float32
    model.phi_in_training(weights, X.bfloat16(), None)
    assert weights["1.running_mean"].abs().sum() > 0


def test_what_is_shared_and_personal_follows_the_rule() -> None:
    names = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    personal, averaged = Model(normed(), 2, norm="personal"), Model(normed(), 2, norm="averaged")
    assert set(personal.personal_weights()) == names
    assert not names & set(personal.shared_weights())
    assert names < set(averaged.shared_weights())
    assert set(Model(normed(), 2, norm="averaged", personal="1").personal_weights()) == names
    frozen = Model(normed(), 2, norm="frozen")
    assert frozen.statistics == ()
    assert {"1.running_mean", "1.running_var"} < set(frozen.constants)


def test_a_number_names_a_layer_from_the_top_alone() -> None:
    module = nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.BatchNorm1d(2)
    )
    assert Model(module, 2, norm="personal").shared_weights().keys() == {
        "0.weight",
        "0.bias",
        "1.0.weight",
        "1.0.bias",
    }
    assert Model(module.eval(), 2, personal="0").personal_names == ("0.weight", "0.bias")


def test_group_norm_takes_over_weights_and_treats_samples_on_their_own() -> None:
    module = nn.Sequential(nn.Conv2d(1, 32, 1), nn.Sequential(nn.BatchNorm2d(32)), nn.Flatten())
    with torch.no_grad():
        module[1][0].weight.copy_(torch.rand(32))  # type: ignore[index]
    made = with_group_norm(module)
    layer = made[1][0]  # type: ignore[index]
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == 2
    assert torch.equal(layer.weight, module[1][0].weight)  # type: ignore[index]
    assert layer.weight is not module[1][0].weight  # type: ignore[index]
    assert isinstance(module[1][0], nn.BatchNorm2d)  # type: ignore[index]
    x = torch.randn(3, 1, 2, 2)
    z = made[0](x).reshape(3, 2, 16 * 4)  # type: ignore[index]
    z = (z - z.mean(2, keepdim=True)) / torch.sqrt(z.var(2, keepdim=True, unbiased=False) + 1e-5)
    expected = z.reshape(3, 32, 2, 2) * layer.weight[:, None, None] + layer.bias[:, None, None]
    torch.testing.assert_close(made(x), expected.flatten(1))
    Model(module, 128, norm="group").check(x)
    assert isinstance(with_group_norm(nn.BatchNorm1d(7)), nn.GroupNorm)


@pytest.mark.parametrize(
    "module",
    [Inside(), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.AlphaDropout(0.5))],
    ids=["by a function", "alpha dropout"],
)
def test_randomness_that_no_rule_covers_is_refused(module: nn.Module) -> None:
    with pytest.raises(ModelError, match=r"backbone\.eval\(\)"):
        Model(module, 2).check(X)
    Model(module.eval(), 2).check(X)


def test_dropout_needs_no_rule() -> None:
    Model(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), 2).check(X)


@pytest.mark.parametrize("how", [{"momentum": None}, {"track_running_stats": False}])
def test_batch_norm_must_keep_moving_averages(how: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="momentum"):
        Model(normed(**how), 2, norm="averaged")


@pytest.mark.parametrize("norm", ["personal", "averaged", "batch", 3])
def test_rules_for_nothing_are_refused(norm: Any) -> None:
    with pytest.raises(ModelError, match="norm"):
        Model(nn.Linear(2, 2), 2, norm=norm)


def test_fingerprints_tell_rules_apart() -> None:
    drops = nn.Sequential(normed(), nn.Dropout(0.5))
    more = nn.Sequential(normed(), nn.Dropout(0.4))
    models = [Model(drops, 2, norm=norm) for norm in NORMS]
    models += [Model(more, 2, norm="frozen"), Model(more.eval(), 2)]
    assert len({model.fingerprint() for model in models}) == 6


def test_a_model_that_is_sent_elsewhere_keeps_its_rules() -> None:
    model = Model(normed(), 2, norm="averaged", personal="0")
    again = pickle.loads(pickle.dumps(model))
    assert again.fingerprint() == model.fingerprint()
    assert again.personal_names == model.personal_names
    assert again.statistics == model.statistics


def test_masks_do_not_depend_on_who_works_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that work side by side in threads draw what they would draw alone."""
    rng = torch.Generator().manual_seed(0)
    clients = [pflego.Client(k, torch.randn(60, 2, generator=rng), torch.arange(60) % 2) for k in range(8)]
    model = Model(nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Dropout(0.5)), 64, norm="averaged")
    algorithm, seen = pflego.FedAvg(steps=6, client_lr=0.1, batch_size=20), set()
    before, there = torch.get_num_threads(), Model.phi_in_training

    def noted(self: Model, *given: Any) -> Tensor:
        seen.add(threading.get_ident())
        return there(self, *given)

    monkeypatch.setattr(Model, "phi_in_training", noted)
    runs = []
    try:
        for threads, worth in [(1, 1e8), (3, 0.0)]:
            torch.set_num_threads(threads)
            monkeypatch.setattr(parallel, "_WORTH_IT", worth)
            runs.append(pflego.train(pflego.Federation(clients), model, algorithm, rounds=2, seed=3))
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 2
    for name, tensor in runs[0].shared.items():
        assert torch.equal(tensor, runs[1].shared[name]), name


def test_a_parameter_that_is_called_like_a_statistic_is_refused() -> None:
    """By their names servers tell what is averaged from what gradients move."""
    layer = nn.Linear(2, 2)
    layer.running_var = nn.Parameter(torch.ones(2))
    with pytest.raises(ModelError, match="running_var"):
        Model(nn.Sequential(layer), 2)
