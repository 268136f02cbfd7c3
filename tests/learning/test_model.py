from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pflego import Model, UserError
from pflego.learning.model import PersonalModel
from pflego.weights import Weights

X = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(x.shape)


class NumpyNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + np.random.default_rng().random()


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Standardised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(dim=0)) / x.std(dim=0)  # of a single sample, this is not a number


class Counting(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Fussy(nn.Module):
    """Refuses its input without a word."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs.to(self.dtype)


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs.detach()


def two_layers(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3, dtype=dtype), nn.Tanh(), nn.Linear(3, 2, dtype=dtype))


@pytest.mark.parametrize(
    "layer",
    [nn.AlphaDropout(0.1), nn.BatchNorm1d(2), nn.SyncBatchNorm(2)],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_behave_otherwise_in_training_are_refused_by_name(layer: nn.Module) -> None:
    backbone = nn.Sequential(nn.Flatten(), layer)
    with pytest.raises(
        UserError, match=rf"{type(layer).__name__} \(1\) is in training mode.*backbone\.eval\(\)"
    ):
        Model(backbone, 2).check(X)


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.5), nn.BatchNorm1d(2)], ids=lambda layer: type(layer).__name__
)
def test_they_are_accepted_in_evaluation_mode(layer: nn.Module) -> None:
    Model(nn.Sequential(nn.Flatten(), layer).eval(), 2).check(X)


@pytest.mark.parametrize(
    "backbone", [nn.Dropout(0.0), nn.LayerNorm(2), nn.GroupNorm(1, 2)], ids=lambda layer: type(layer).__name__
)
def test_layers_that_treat_samples_on_their_own_are_accepted_in_training_mode(backbone: nn.Module) -> None:
    Model(backbone.train(), 2).check(X)


@pytest.mark.parametrize(
    "backbone", [Noisy(), NumpyNoise(), nn.RReLU()], ids=lambda layer: type(layer).__name__
)
def test_hidden_randomness_is_refused(backbone: nn.Module) -> None:
    with pytest.raises(UserError, match="must not draw at random"):
        Model(backbone, 2).check(X)


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize(
    "backbone",
    [Centred(), Standardised()],
    ids=lambda layer: type(layer).__name__,
)
def test_features_that_depend_on_the_batch_are_refused(backbone: nn.Module) -> None:
    with pytest.raises(UserError, match="depend on the other samples in its batch"):
        Model(backbone, 2).check(X)


def test_batch_statistics_in_evaluation_mode_are_refused() -> None:
    with pytest.raises(UserError, match="batch"):
        Model(nn.BatchNorm1d(2, track_running_stats=False).eval(), 2).check(X)


def test_a_backbone_that_changes_its_buffers_is_refused() -> None:
    with pytest.raises(UserError, match="changed one of its buffers"):
        Model(Counting(), 2).check(X)


@pytest.mark.parametrize("features", [1, 3])
def test_a_wrong_number_of_features_is_refused(features: int) -> None:
    with pytest.raises(UserError, match=rf"\(3, 2\) to \(3, 2\), but features={features} promises"):
        Model(nn.Identity(), features).check(X)


def test_features_that_are_not_flat_are_refused() -> None:
    with pytest.raises(UserError, match=r"\(3, 1, 2\)"):
        Model(nn.Unflatten(1, (1, 2)), 2).check(X)


def test_an_output_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(UserError, match=r"must give one tensor, \(samples, features\), not a tuple"):
        Model(Pair(), 2).check(X)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.long])
def test_features_of_another_type_than_the_weights_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UserError, match=f"weights are torch.float32, but its features {dtype}"):
        Model(Cast(dtype), 2).check(X)


@pytest.mark.parametrize("backbone", [Doubling(), nn.ReLU(inplace=True)], ids=["x.mul_(2)", "inplace=True"])
def test_a_backbone_that_changes_its_inputs_is_refused_and_they_are_saved(backbone: nn.Module) -> None:
    x = X.clone()
    with pytest.raises(UserError, match="the backbone changed its inputs"):
        Model(backbone, 2).check(x)
    assert torch.equal(x, X)


def test_changes_of_its_own_features_are_its_own_affair() -> None:
    Model(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), 2).check(X)


def test_features_without_a_gradient_are_refused() -> None:
    with pytest.raises(UserError, match=r"no gradient in its parameters.*detach\(\)"):
        Model(Detached(), 2).check(X)
    Model(nn.Linear(2, 2).requires_grad_(False), 2).check(X)


@pytest.mark.parametrize(
    ("backbone", "x"),
    [
        (nn.Linear(5, 2), X),
        (nn.Linear(2, 2), X.long()),
        (nn.Conv2d(1, 2, 3), X),
        (nn.Embedding(3, 2), torch.tensor([0, 1, 7])),
        (Fussy(ValueError), X),
        (Fussy(AssertionError), X),
    ],
    ids=["width", "whole numbers", "image", "word beyond the vocabulary", "no reason given", "assertion"],
)
def test_inputs_the_backbone_cannot_take_are_refused_with_their_shape(backbone: nn.Module, x: Tensor) -> None:
    with pytest.raises(UserError, match=rf"cannot take .* a batch of shape \({x.shape[0]},") as refusal:
        Model(backbone, 2).check(x)
    assert "\n" not in str(refusal.value)


def test_only_modules_are_backbones() -> None:
    with pytest.raises(UserError, match=r"must be a torch\.nn\.Module, not builtin_function_or_method"):
        Model(torch.relu, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("features", [0, -1, 2.0, "2", None])
def test_features_are_a_whole_number_above_zero(features: int) -> None:
    with pytest.raises(UserError, match="features must be the number of the backbone's outputs"):
        Model(nn.Identity(), features)


def test_a_parameter_may_not_take_the_name_of_the_heads() -> None:
    backbone = nn.Module()
    backbone.head = nn.Parameter(torch.zeros(2))
    with pytest.raises(UserError, match=r"parameter .*'head'"):
        Model(backbone, 2)


def test_checking_leaves_the_random_state_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(UserError):
        Model(Noisy(), 2).check(X)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_prepared_as_parts_of_255_and_floats_in_the_type_of_the_model(dtype: torch.dtype) -> None:
    model = Model(two_layers(dtype), 2)
    prepared = model.prepare(torch.tensor([[0, 51, 255]], dtype=torch.uint8))
    assert prepared.dtype == dtype
    assert prepared.tolist() == [pytest.approx([0, 0.2, 1])]
    for kind in (torch.float16, torch.float32, torch.float64):
        prepared = model.prepare(torch.tensor([0.5, 300.0], dtype=kind))
        assert prepared.dtype == dtype
        assert prepared.tolist() == [0.5, 300.0]


def test_whole_numbers_are_prepared_as_they_are() -> None:
    words = torch.tensor([[3, 1], [0, 2]])
    assert Model(nn.Embedding(4, 2), 2).prepare(words) is words


def test_a_backbone_for_words_is_accepted() -> None:
    Model(nn.Sequential(nn.Embedding(4, 3), nn.Flatten()), 6).check(torch.tensor([[3, 1], [0, 2]]))


def test_frozen_parameters_are_no_part_of_theta() -> None:
    backbone = two_layers()
    backbone[0].requires_grad_(False)
    model = Model(backbone, 2)
    assert model.names == ("2.weight", "2.bias")
    assert set(model.weights()) == {"2.weight", "2.bias"}


def test_weights_are_copies() -> None:
    model = Model(two_layers(), 2)
    before = model.fingerprint()
    for tensor in model.weights().values():
        tensor.zero_()
    assert model.fingerprint() == before


def test_the_fingerprint_changes_with_the_weights() -> None:
    backbone = two_layers()
    before = Model(backbone, 2).fingerprint()
    with torch.no_grad():
        backbone.get_parameter("2.bias")[0] += 1e-12
    assert Model(backbone, 2).fingerprint() != before


def theta_and_head(model: Model) -> Weights:
    """Weights other than the backbone's own, with a head of two outputs."""
    theta = {name: tensor + 0.25 for name, tensor in model.weights().items()}
    return {**theta, "head": torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], dtype=torch.float64)}


def outputs(model: Model, weights: Weights, x: Tensor) -> Tensor:
    """z = phi W^T + b."""
    head = weights["head"]
    return model.phi(weights, model.prepare(x)) @ head[:, :-1].T + head[:, -1]


def personal_model(model: Model, weights: Weights, classes: Tensor) -> PersonalModel:
    return model.personal(weights, len(weights["head"]), classes)


def test_features_and_outputs_are_those_of_two_layers_and_a_head_by_hand() -> None:
    model = Model(two_layers(), 2)
    weights = theta_and_head(model)
    w = {name: tensor.numpy() for name, tensor in weights.items()}
    hidden = np.tanh(X.double().numpy() @ w["0.weight"].T + w["0.bias"])
    phi = hidden @ w["2.weight"].T + w["2.bias"]
    z = phi @ w["head"][:, :2].T + w["head"][:, 2]
    np.testing.assert_allclose(model.phi(weights, model.prepare(X)).numpy(), phi, rtol=1e-12)
    personal = personal_model(model, weights, torch.tensor([3, 7]))
    np.testing.assert_allclose(personal(X).detach().numpy(), z, rtol=1e-12)


@pytest.mark.parametrize("change", [lambda x: x, lambda x: (x.abs() * 100).byte(), lambda x: x.half()])
def test_a_personal_model_gives_the_outputs_of_the_model(change: Callable[[Tensor], Tensor]) -> None:
    model = Model(two_layers(), 2)
    weights, x = theta_and_head(model), change(X)
    personal = personal_model(model, weights, torch.tensor([3, 7]))
    assert not personal.training
    torch.testing.assert_close(personal(x).detach(), outputs(model, weights, x))


def test_a_personal_model_keeps_frozen_parameters_and_buffers() -> None:
    backbone = nn.Sequential(two_layers(), nn.BatchNorm1d(2, dtype=torch.float64)).eval()
    backbone[0].requires_grad_(False)
    backbone.get_buffer("1.running_mean").fill_(0.5)
    model = Model(backbone, 2)
    weights = theta_and_head(model)
    personal = personal_model(model, weights, torch.tensor([3, 7]))
    torch.testing.assert_close(personal(X).detach(), outputs(model, weights, X))


def test_predictions_are_class_ids() -> None:
    model = Model(nn.Identity(), 2)
    head = {"head": torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])}
    assert personal_model(model, head, torch.tensor([3, 7])).predict(X[:2]).tolist() == [7, 3]


def test_predictions_of_a_regression_are_numbers() -> None:
    model = Model(nn.Identity(), 2)
    head = {"head": torch.tensor([[2.0, 1.0, -1.0]])}
    assert personal_model(model, head, torch.empty(0)).predict(X).tolist() == [[0.0], [2.0], [0.5]]


def test_the_backbone_is_left_alone() -> None:
    backbone = nn.Sequential(two_layers(), nn.Dropout(0.0)).train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    model = Model(backbone, 2)
    model.check(X)
    weights = theta_and_head(model)
    outputs(model, weights, X)
    with torch.no_grad():
        for tensor in personal_model(model, weights, torch.tensor([0, 1])).parameters():
            tensor.zero_()
    assert backbone.training
    assert all(parameter.grad is None for parameter in backbone.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


def test_probabilities_are_a_softmax_over_all_outputs() -> None:
    model = Model(nn.Identity(), 2)
    weights = {"head": torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]])}
    z = np.concatenate([X.numpy(), np.full((3, 1), 2.0)], axis=1)
    wanted = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    for classes in ([3, 7, 8], [3, 7]):  # the last output may stand for no class
        given = model.personal(weights, 3, torch.tensor(classes)).probabilities(X)
        np.testing.assert_allclose(given, wanted[:, : len(classes)], rtol=1e-6)
    with pytest.raises(UserError, match="a regression has no probabilities"):
        model.personal(weights, 3, torch.empty(0)).probabilities(X)
