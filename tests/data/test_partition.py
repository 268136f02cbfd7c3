import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego import UserError
from pflego.data.partition import (
    by_column,
    consecutive_classes,
    dirichlet,
    draw_classes,
    iid,
    in_shares,
    round_robin,
)

Split = tuple[int, int, int, int]


@st.composite
def splits(draw: st.DrawFn) -> Split:
    """Classes, clients, classes a client and a seed, of a split that exists."""
    classes = draw(st.integers(1, 12))
    each = draw(st.integers(1, classes))
    clients = draw(st.integers(-(-classes // each), 30))
    return classes, clients, each, draw(st.integers(0, 2**32))


def labels_of(classes: int, samples: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(classes, size=samples)


@given(splits())
def test_every_client_holds_its_number_of_classes_and_every_class_is_held(split: Split) -> None:
    classes, clients, each, seed = split
    held = draw_classes(classes, clients, each, seed=seed)
    assert [len(set(own.tolist())) for own in held] == [each] * clients
    assert all(own.tolist() == sorted(own) for own in held)
    assert set(np.concatenate(held).tolist()) == set(range(classes))


@given(splits())
def test_consecutive_classes_are_runs_in_order_and_every_class_is_held(split: Split) -> None:
    classes, clients, each, _ = split
    held = [own.tolist() for own in consecutive_classes(classes, clients, each)]
    assert all(own == list(range(own[0], own[0] + each)) for own in held)
    assert held == sorted(held)
    assert {c for own in held for c in own} == set(range(classes))


def test_consecutive_classes_of_a_board_of_twenty_clients() -> None:
    federation = pflego.load("digits", clients=20, partition="consecutive", classes_per_client=2, seed=3)
    pairs = [tuple(sorted(set(client.y_train.tolist()))) for client in federation]
    assert pairs == [(c, c + 1) for c in (0, 2, 4, 6, 8) for _ in range(4)]


@given(splits())
def test_classes_are_a_function_of_the_seed(split: Split) -> None:
    classes, clients, each, seed = split
    first, second = (draw_classes(classes, clients, each, seed=seed) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("each", [0, 4])
def test_more_classes_a_client_than_there_are_is_refused(each: int) -> None:
    with pytest.raises(UserError, match=f"classes_per_client must be from 1 to 3, .* not {each}"):
        draw_classes(3, 10, each, seed=0)


@pytest.mark.parametrize(("classes", "clients", "each"), [(10, 4, 2), (3, 2, 1), (20, 1, 19), (7, 3, 2)])
def test_classes_that_nobody_could_hold_are_refused(classes: int, clients: int, each: int) -> None:
    with pytest.raises(UserError, match=f"cannot hold all {classes} classes"):
        draw_classes(classes, clients, each, seed=0)


@given(splits(), st.integers(0, 200))
def test_round_robin_deals_each_sample_once_to_somebody_who_holds_its_class(
    split: Split, samples: int
) -> None:
    classes, clients, each, seed = split
    held = draw_classes(classes, clients, each, seed=seed)
    labels = labels_of(classes, samples, seed)
    dealt = round_robin(labels, held, seed=seed, purpose="train")
    assert sorted(np.concatenate(dealt).tolist()) == list(range(samples))
    assert all(set(labels[mine]) <= set(own) for mine, own in zip(dealt, held, strict=True))


@given(splits(), st.integers(0, 200))
def test_holders_of_a_class_differ_by_one_sample_at_most(split: Split, samples: int) -> None:
    classes, clients, each, seed = split
    held = draw_classes(classes, clients, each, seed=seed)
    labels = labels_of(classes, samples, seed)
    dealt = round_robin(labels, held, seed=seed, purpose="train")
    for c in range(classes):
        sizes = [np.sum(labels[mine] == c) for mine, own in zip(dealt, held, strict=True) if c in own]
        assert max(sizes) - min(sizes) <= 1


def test_round_robin_shuffles_by_seed_and_purpose() -> None:
    labels, held = np.zeros(100, np.int64), [np.array([0]), np.array([0])]
    dealt = [
        round_robin(labels, held, seed=seed, purpose=purpose)[0].tolist()
        for seed, purpose in [(0, "train"), (0, "train"), (1, "train"), (0, "test")]
    ]
    assert dealt[0] == dealt[1]
    assert dealt[0] not in dealt[2:]


@given(st.integers(0, 200), st.integers(1, 30), st.integers(0, 2**32))
def test_without_classes_each_sample_is_dealt_once_and_evenly(samples: int, clients: int, seed: int) -> None:
    dealt = iid(samples, clients, seed=seed, purpose="train")
    sizes = [len(mine) for mine in dealt]
    assert len(dealt) == clients
    assert sorted(np.concatenate(dealt).tolist()) == list(range(samples))
    assert max(sizes) - min(sizes) <= 1


@given(
    st.integers(1, 8),
    st.integers(1, 200),
    st.integers(1, 30),
    st.floats(1e-3, 1e3),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_dirichlet_deals_each_sample_once_and_leaves_nobody_empty(
    classes: int, samples: int, clients: int, alpha: float, seed: int, capped: bool
) -> None:
    dealt = dirichlet(labels_of(classes, samples, seed), clients, alpha, seed=seed, capped=capped)
    assert len(dealt) == clients
    assert sorted(np.concatenate(dealt).tolist()) == list(range(samples))
    assert min(map(len, dealt)) >= (1 if samples >= clients else 0)
    assert all(mine.tolist() == sorted(mine) for mine in dealt)


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e9, 1e300])
def test_dirichlet_takes_any_alpha(alpha: float, capped: bool) -> None:
    dealt = dirichlet(labels_of(4, 500, 0), 10, alpha, seed=1, capped=capped)
    assert sum(map(len, dealt)) == 500
    assert min(map(len, dealt)) >= 1
    if alpha > 1:  # every class is divided evenly
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 4


def test_dirichlet_divides_as_unequally_as_theory_says() -> None:
    clients, alpha, each = 20, 0.5, 10_000
    dealt = dirichlet(np.repeat(np.arange(40), each), clients, alpha, seed=0)
    counts = np.stack([np.bincount(mine // each, minlength=40) for mine in dealt]) / each  # shares of a class
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * alpha + 1)
    assert counts.var() == pytest.approx(variance, rel=0.15)


def test_capped_who_has_an_even_share_gets_nothing_of_the_classes_that_follow() -> None:
    classes, clients, each = 10, 20, 1_000
    labels = np.repeat(np.arange(classes), each)
    plain, capped = (
        np.stack([np.bincount(labels[own], minlength=classes) for own in dealt])  # (clients, classes)
        for dealt in (dirichlet(labels, clients, 0.1, seed=0, capped=way) for way in (False, True))
    )
    before = np.cumsum(capped, axis=1) - capped  # of the earlier classes
    full = before > classes * each / clients + 1  # shares are kept to a sample
    assert full.any()
    assert (capped[full] == 0).all()
    # the others divide what is left in the shares that they drew
    for c in range(classes):
        below = before[:, c] < classes * each / clients - 1
        drawn = plain[below, c] / plain[below, c].sum()
        assert capped[below, c] == pytest.approx(each * drawn, abs=1 + 0.02 * each)
    # so clients are less mixed: the classes that a client has most of are more of all samples
    assert capped.max(axis=1).sum() > 1.1 * plain.max(axis=1).sum()


def test_dirichlet_is_a_function_of_the_seed() -> None:
    labels = labels_of(3, 100, 0)
    first, same, other = (
        [mine.tolist() for mine in dirichlet(labels, 5, 0.3, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == same != other


@given(st.integers(0, 300), st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any))
def test_shares_are_kept_to_a_sample_and_who_has_none_gets_none(samples: int, weights: list[int]) -> None:
    shares = np.array([weights], np.float64)
    dealt = in_shares(np.zeros(samples, np.int64), shares, seed=0, purpose="test")
    assert sorted(np.concatenate(dealt).tolist()) == list(range(samples))
    for mine, weight in zip(dealt, weights, strict=True):
        assert abs(len(mine) - samples * weight / sum(weights)) <= 1
        assert weight > 0 or len(mine) == 0


def test_a_column_gives_every_sample_to_the_client_it_names() -> None:
    ids, train, test = by_column(np.array(["b", "a", "b", "c"]), np.array(["c", "c", "a"]))
    assert ids == ["a", "b", "c"]
    assert [mine.tolist() for mine in train] == [[1], [0, 2], [3]]
    assert [mine.tolist() for mine in test] == [[2], [], [0, 1]]


def test_a_client_of_a_column_needs_training_samples() -> None:
    with pytest.raises(UserError, match="client 9 has test samples but none to train on"):
        by_column(np.array([1, 2]), np.array([1, 9]))
