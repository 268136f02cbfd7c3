import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflego import UserError
from pflego.data.partition import draw_classes, iid, round_robin

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
