"""Clients that differ in what inputs look like, in what labels mean, in noise, in how much they have."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego import UserError
from pflego.data.left_out import left_out
from pflego.data.shift import change, confuse, draw_groups
from tests.support.cases import often

KINDS = ["rotation", "permutation", "inversion", "contrast", "labels"]


def digits(**options: Any) -> pflego.Federation:
    return pflego.load("digits", clients=8, partition="iid", seed=2, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", often([2, 4, None]))
def test_clients_of_a_group_are_shifted_alike_and_the_first_group_hardly(
    kind: str, groups: int | None
) -> None:
    plain, shifted = digits(), digits(shift=kind, groups=groups)
    assigned = draw_groups(8, groups or 8, seed=2)
    assert {*Counter(assigned.tolist()).values()} == {8 // (groups or 8)}
    for before, after, group in zip(plain, shifted, assigned.tolist(), strict=True):
        for part in ("train", "test"):
            x, y = getattr(before, f"x_{part}"), getattr(before, f"y_{part}")
            wanted = expected(kind, x.numpy(), group, groups or 8)
            assert np.allclose(getattr(after, f"x_{part}").numpy(), wanted, atol=1e-6)
            renamed = getattr(after, f"y_{part}")
            if kind != "labels" or group == 0:
                assert torch.equal(renamed, y)
            else:  # a permutation, and not the one that changes nothing
                pairs = {*zip(y.tolist(), renamed.tolist(), strict=True)}
                assert len(pairs) == len({*y.tolist()}) == len({*renamed.tolist()})
                assert any(one != other for one, other in pairs)


def expected(kind: str, x: Any, group: int, groups: int) -> Any:
    """By another way than the code's, where there is one."""
    images = x.reshape(-1, 8, 8)
    if kind == "inversion" and group % 2:
        return 1 - x
    if kind == "contrast":
        factor = np.linspace(1, 0.2, groups)[group]
        return 0.5 * (1 - factor) + factor * x
    if kind == "rotation" and (4 * group) % groups == 0:
        turned = images
        for _ in range(4 * group // groups):
            turned = turned.transpose(0, 2, 1)[:, ::-1]  # a quarter, counter-clockwise
        return turned.reshape(x.shape)
    if kind in ("rotation", "permutation"):
        return change(kind, x, group, groups, (8, 8), seed=2)  # type: ignore[arg-type]
    return x


def test_an_eighth_of_a_turn_twice_is_a_quarter_but_for_its_corners() -> None:
    image = np.zeros((1, 33, 33))
    image[0, 10:23, 14:19] = 1  # a bar in the middle
    once = change("rotation", image, 1, 8, (33, 33), seed=0)
    twice = change("rotation", once, 1, 8, (33, 33), seed=0).astype(np.float64)
    quarter = change("rotation", image, 1, 4, (33, 33), seed=0).astype(np.float64)
    assert np.corrcoef(twice.ravel(), quarter.ravel())[0, 1] > 0.95
    assert np.corrcoef(twice.ravel(), image.ravel())[0, 1] < 0.7
    spot = np.zeros((1, 33, 33))
    spot[0, 2:5, 3:6] = 1  # up on the left: counter-clockwise it goes down on the left
    turned = np.asarray(change("rotation", spot, 1, 6, (33, 33), seed=0), np.float64)
    row, column = np.argwhere(turned[0] > 0.3).mean(axis=0)
    assert row > 16
    assert column < 16


def test_a_permutation_moves_pixels_and_all_colours_of_one_together() -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, size=(5, 4, 6, 3)).astype(np.uint8)
    moved = change("permutation", images, 3, 7, (4, 6, 3), seed=1)
    assert moved.dtype == np.uint8
    assert not np.array_equal(moved, images)
    for one, other in zip(images, moved, strict=True):
        assert sorted(map(tuple, one.reshape(-1, 3).tolist())) == sorted(
            map(tuple, other.reshape(-1, 3).tolist())
        )
    assert not np.array_equal(moved, change("permutation", images, 2, 7, (4, 6, 3), seed=1))


def test_bytes_stay_bytes() -> None:
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    assert np.array_equal(change("inversion", images, 1, 2, (16, 16), seed=0), 255 - images)
    faint = change("contrast", images, 1, 2, (16, 16), seed=0)
    assert faint.dtype == np.uint8
    assert {102, 153} <= {*faint.ravel().tolist()} <= {*range(102, 154)}  # 127.5 -+ 0.2 * 127.5


def test_noise_is_in_training_labels_alone_and_among_a_clients_own_classes() -> None:
    plain = pflego.load("digits", clients=10, classes_per_client=3, seed=1)
    noisy = pflego.load("digits", clients=10, classes_per_client=3, seed=1, label_noise=0.3)
    wrong = total = 0
    for before, after in zip(plain, noisy, strict=True):
        assert torch.equal(before.y_test, after.y_test)
        assert torch.equal(before.x_train, after.x_train)
        assert {*after.y_train.tolist()} <= {*before.y_train.tolist()}
        wrong += int((before.y_train != after.y_train).sum())
        total += len(before.y_train)
    assert wrong / total == pytest.approx(0.3, abs=4 * (0.21 / total) ** 0.5)
    assert confuse(np.array([4, 4]), 0.9, seed=0, client=1).tolist() == [4, 4]


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    one, same = digits(shift="permutation", groups=3), digits(shift="permutation", groups=3)
    assert one.fingerprint() == same.fingerprint()
    assert one.source["shift"] == "permutation"
    other = pflego.load("digits", clients=8, partition="iid", seed=3, shift="permutation", groups=3)
    assert one.fingerprint() != other.fingerprint()


def test_who_is_left_out_changes_nobodys_group() -> None:
    everybody = digits(shift="inversion", groups=2)
    some = digits(shift="inversion", groups=2, leave_out=["0", "3"])
    assert all(torch.equal(client.x_train, everybody.client(client.id).x_train) for client in some)
    assert torch.equal(left_out(some, 3)[0].x_train, everybody.client(3).x_train)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ("diabetes", {"shift": "rotation"}, "is for images"),
        ("diabetes", {"shift": "labels"}, "regression"),
        ("diabetes", {"label_noise": 0.1}, "regression"),
        ("digits", {"groups": 2}, "say shift"),
        ("digits", {"shift": "labels", "groups": 21}, "cannot be in 21 groups"),
        ("digits", {"shift": "rotatoin"}, "did you mean 'rotation'"),
        ("heart", {"shift": "labels"}, "leave it out"),
    ],
)
def test_what_does_not_apply_is_refused(data: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        pflego.load(data, **options)


def test_shards_are_equal_and_hold_few_classes() -> None:
    federation = pflego.load("digits", clients=20, partition="shards", classes_per_client=3, seed=4)
    sizes = [len(client.x_train) for client in federation]
    assert max(sizes) - min(sizes) <= 3
    assert sum(sizes) == 1438
    assert max(len(client.classes) for client in federation) <= 6  # a shard may lie on a border
    assert np.mean([len(client.classes) for client in federation]) < 4.5
    rows = torch.cat([client.x_train for client in federation]).numpy()
    everything = pflego.load("digits", clients=1, classes_per_client="none")[0].x_train.numpy()
    assert sorted(row.tobytes() for row in rows) == sorted(row.tobytes() for row in everything)
    for client in federation:
        assert {*client.y_test.tolist()} <= {*client.classes.tolist()}
    with pytest.raises(UserError, match="shards"):
        pflego.load("digits", clients=1000, partition="shards")


def test_quantities_follow_a_dirichlet_distribution_and_nobody_has_nothing() -> None:
    unequal = pflego.load("digits", clients=20, partition="quantity", alpha=0.2, seed=4)
    even = pflego.load("digits", clients=20, partition="quantity", alpha=500.0, seed=4)
    assert unequal.samples == even.samples == 1438
    assert unequal.sizes.min() >= 1
    assert unequal.sizes.max() > 4 * 1438 / 20
    assert even.sizes.max() < 1.3 * 1438 / 20
    for federation in (unequal, even):  # test samples in the same shares
        tested = np.array([len(client.x_test) for client in federation])
        assert np.allclose(tested / 359, federation.sizes / 1438, atol=0.02)
    regression = pflego.load("diabetes", clients=5, partition="quantity")
    assert regression.samples == 354


def test_shifts_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from pflego.report.holdings import examples

    federation = digits(shift="inversion", groups=2)
    rows = examples(federation, (8, 8))
    assert {len(own) for own in rows} == {6}
    bright = [[float(image.mean()) > 0.5 for image in own] for own in rows]
    assert all(any(own) and not all(own) for own in bright)  # some of either kind, in every class
