import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pflego.data.own.holdout import arrange, held_out


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    share=st.floats(0, 0.95),
    seed=st.integers(0, 9),
)
def test_a_share_is_held_out_class_by_class_and_every_class_keeps_a_sample(
    counts: list[int], share: float, seed: int
) -> None:
    kinds = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    test = held_out(kinds, share, seed=seed, client="a")
    samples = sum(counts)
    assert test.sum() == min(int(samples * share + 0.5), samples - len(counts))
    for kind, count in enumerate(counts):
        tested = test[kinds == kind].sum()
        assert tested <= count - 1
        if test.sum() == int(samples * share + 0.5) and all(share * c <= c - 1 for c in counts):
            assert abs(tested - share * count) < 1


def test_a_client_of_two_samples_keeps_both() -> None:
    assert held_out(np.array([0, 0]), 0.2, seed=0, client=1).sum() == 0
    assert held_out(np.array([0, 0, 0]), 0.2, seed=0, client=1).sum() == 1
    assert held_out(np.array([0, 1, 2]), 0.9, seed=0, client=1).sum() == 0


def test_what_is_held_out_depends_on_the_seed_and_the_client_alone() -> None:
    kinds = np.arange(60) % 3
    mine = held_out(kinds, 0.3, seed=1, client="a")
    assert (mine == held_out(kinds, 0.3, seed=1, client="a")).all()
    assert (mine != held_out(kinds, 0.3, seed=2, client="a")).any()
    assert (mine != held_out(kinds, 0.3, seed=1, client="b")).any()


def test_samples_are_put_in_order_client_by_client_those_for_testing_last() -> None:
    owners, said = np.array([1, 0, 1, 0, 1]), np.array([True, False, False, False, True])
    order = arrange(owners, ["a", "b"], np.zeros(5, int), test=said, share=0.5, seed=0)
    assert order.rows.tolist() == [1, 3, 2, 0, 4]
    assert order.test.tolist() == [False, False, False, True, True]
    (a, b) = order.shares(order.rows * 10, order.rows)
    assert [part.tolist() for part in a] == [[10, 30], [1, 3], [], []]
    assert [part.tolist() for part in b] == [[20], [2], [0, 40], [0, 4]]
    assert order.untrained is None


def test_a_client_without_training_samples_is_found() -> None:
    owners = np.array([0, 1, 1, 2])
    said = np.array([False, True, True, False])
    assert arrange(owners, "abc", np.zeros(4, int), test=said, share=0.5, seed=0).untrained == 1
    assert arrange(owners[:1], "ab", np.zeros(1, int), test=said[:1], share=0.5, seed=0).untrained == 1


def test_where_nothing_is_said_a_share_is_drawn_of_every_client() -> None:
    owners = np.repeat([0, 1], [10, 20])
    order = arrange(owners, ["a", "b"], np.zeros(30, int), test=None, share=0.2, seed=3)
    assert np.diff(order.ends, prepend=0).tolist() == [8, 2, 16, 4]
    assert sorted(order.rows.tolist()) == list(range(30))
    mine = held_out(np.zeros(20, int), 0.2, seed=3, client="b")
    assert order.rows[-4:].tolist() == (10 + np.flatnonzero(mine)).tolist()
