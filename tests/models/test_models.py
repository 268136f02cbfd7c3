import pytest
import torch
from torch import nn

from pflego import UserError, models

SHAPES = {"cifar-cnn": (32, 32, 3), "omniglot-conv4": (28, 28), "char-cnn": (20,)}


def test_first_weights_are_a_function_of_the_seed() -> None:
    one, same, other = (models.build("mlp", (4,), seed=seed).fingerprint() for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("name", models.BACKBONES)
def test_building_neither_reads_nor_changes_the_global_random_state(name: str) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    shape = SHAPES.get(name, (16, 16))
    first = models.build(name, shape, seed=1).fingerprint()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    assert models.build(name, shape, seed=1).fingerprint() == first


def test_the_mlp_is_one_layer_of_200_units() -> None:
    model = models.build("mlp", (28, 28))
    assert model.features == 200
    assert {name: tuple(tensor.shape) for name, tensor in model.weights().items()} == {
        "1.weight": (200, 784),
        "1.bias": (200,),
    }
    images = torch.randint(256, (3, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    weights = model.weights()
    found = model.phi(weights, model.prepare(images))
    flat = images.double().reshape(3, 784) / 255
    wanted = (flat @ weights["1.weight"].double().T + weights["1.bias"].double()).clamp(min=0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", models.BACKBONES)
def test_every_backbone_passes_the_check(name: str) -> None:
    shape, generator = SHAPES.get(name, (16, 16)), torch.Generator().manual_seed(0)
    tokens = torch.randint(128, (4, *shape), generator=generator)
    models.build(name, shape).check(
        tokens if name == "char-cnn" else torch.rand(4, *shape, generator=generator)
    )


@pytest.mark.parametrize("shape", [(8, 3), (9, 1), (100, 6)])
def test_windows_of_any_length_and_channels_become_64_features(shape: tuple[int, ...]) -> None:
    models.build("watch-cnn", shape).check(torch.rand(3, *shape))


@pytest.mark.parametrize("length", [13, 14, 15, 16, 80])
def test_texts_of_any_length_become_128_features(length: int) -> None:
    model = models.build("char-cnn", (length,))
    model.check(torch.randint(128, (3, length)).int())
    text = torch.randint(64, (1, length))
    changed = text.repeat(length, 1) + 64 * torch.eye(length, dtype=torch.long)  # one character in each row
    features = model.phi(model.weights(), torch.cat([text, changed]))
    assert (features[1:] != features[0]).any(dim=1).all()  # every character is seen, the last one above all


@pytest.mark.parametrize(
    ("name", "shape"), [("watch-cnn", (7, 3)), ("watch-cnn", (28,)), ("char-cnn", (12,))]
)
def test_samples_that_are_too_short_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=f"the model {name} takes"):
        models.build(name, shape)


def test_a_model_keeps_its_name_for_the_record() -> None:
    assert models.build("mlp", (4,)).source["model"] == "mlp"


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown model 'MPL': did you mean 'mlp'"):
        models.build("MPL", (4,))


@pytest.mark.parametrize(("name", "shape"), [("cifar-cnn", (32, 32, 3)), ("omniglot-conv4", (28, 28))])
def test_pooling_before_relu_changes_neither_features_nor_gradients(
    name: str, shape: tuple[int, ...]
) -> None:
    model = models.build(name, shape)
    swapped = list(model.backbone.children())
    for place in [place for place, layer in enumerate(swapped) if isinstance(layer, nn.MaxPool2d)]:
        swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
    x = torch.rand(5, *shape, generator=torch.Generator().manual_seed(1))
    results = []
    for network in (model.backbone, nn.Sequential(*swapped)):
        features = network(x)
        gradients = torch.autograd.grad((features**2).sum(), list(network.parameters()))
        results.append([features, *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_network_for_omniglot_is_the_papers() -> None:
    weights = models.build("omniglot-conv4", (28, 28)).weights()
    shapes = [tuple(w.shape) for name, w in weights.items() if "weight" in name]
    assert shapes == [(64, 1, 3, 3)] + [(64, 64, 3, 3)] * 3
