from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflego import Between, Binomial, Everyone, Fixed, SettingError
from pflego.federation.draws import Equal, cohort, spelled
from pflego.federation.participation import participation_of

PROCESSES = [Fixed(3), Binomial(0.3), Between(2, 7), Everyone()]


def processes(clients: int = 50) -> st.SearchStrategy[Equal]:
    sizes = st.integers(1, clients)
    return st.one_of(
        sizes.map(Fixed),
        st.floats(0, 1, exclude_min=True).map(Binomial),
        st.tuples(sizes, sizes).map(lambda pair: Between(min(pair), max(pair))),
        st.just(Everyone()),
    )


@given(processes(), st.integers(0, 2**40), st.integers(1, 10**6))
def test_a_cohort_is_some_clients_once_each_in_ascending_order(
    participation: Equal, seed: int, number: int
) -> None:
    drawn = cohort(participation, range(50), seed=seed, number=number)
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= set(range(50))


@given(processes(), st.integers(0, 2**40), st.integers(1, 10**6))
def test_a_cohort_is_a_function_of_seed_and_round(participation: Equal, seed: int, number: int) -> None:
    drawn = cohort(participation, range(50), seed=seed, number=number)
    np.random.default_rng(0).random()
    assert cohort(participation, range(50), seed=seed, number=number) == drawn


def test_other_rounds_and_other_seeds_draw_other_cohorts() -> None:
    drawn = {
        tuple(cohort(Fixed(10), range(1000), seed=seed, number=number))
        for seed in range(10)
        for number in range(10)
    }
    assert len(drawn) == 100


@given(st.integers(0, 1000))
def test_sizes_are_those_asked_for(number: int) -> None:
    assert len(cohort(Fixed(7), range(20), seed=1, number=number)) == 7
    assert 2 <= len(cohort(Between(2, 5), range(20), seed=1, number=number)) <= 5
    assert cohort(Everyone(), range(4), seed=1, number=number) == [0, 1, 2, 3]
    assert cohort(Binomial(1.0), range(4), seed=1, number=number) == [0, 1, 2, 3]
    assert cohort(Fixed(4), range(4), seed=1, number=number) == [0, 1, 2, 3]


def test_between_draws_every_size_and_a_binomial_cohort_may_be_empty() -> None:
    assert {len(cohort(Between(2, 5), range(20), seed=0, number=t)) for t in range(200)} == {2, 3, 4, 5}
    assert {len(cohort(Binomial(0.5), range(2), seed=0, number=t)) for t in range(200)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("participation", "expected"), [(Fixed(3), 3), (Binomial(0.3), 3), (Between(2, 7), 4.5), (Everyone(), 10)]
)
def test_the_expected_number_of_participants(participation: Equal, expected: float) -> None:
    assert participation.expected(10) == pytest.approx(expected)


@pytest.mark.parametrize("participation", PROCESSES, ids=str)
def test_a_clients_chance_to_take_part_is_r_over_i(participation: Equal) -> None:
    draws, clients = 4000, 10
    counts = np.zeros(clients)
    for number in range(draws):
        counts[cohort(participation, range(clients), seed=5, number=number)] += 1
    chance = participation.expected(clients) / clients
    assert np.abs(counts / draws - chance).max() <= 5 * sqrt(chance * (1 - chance) / draws)


@pytest.mark.parametrize("r", [0, -1, 2.0, True, "3", None])
def test_a_number_of_clients_is_whole_and_above_zero(r: int) -> None:
    with pytest.raises(SettingError, match="must be a whole number above 0"):
        Fixed(r)
    with pytest.raises(SettingError, match="must be a whole number above 0"):
        Between(1, r)
    with pytest.raises(SettingError, match="must be a whole number above 0"):
        Between(r, 10)


@pytest.mark.parametrize("p", [0, -0.1, 1.0001, float("nan"), float("inf"), "0.5"])
def test_a_probability_is_above_0_and_at_most_1(p: float) -> None:
    with pytest.raises(SettingError, match="the probability to take part"):
        Binomial(p)


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(SettingError, match="the smallest number 5 is above the largest 4"):
        Between(5, 4)


@pytest.mark.parametrize("participation", [Fixed(5), Between(1, 5)], ids=str)
def test_more_participants_than_clients_are_refused(participation: Equal) -> None:
    participation.check(5)
    with pytest.raises(SettingError, match="asks for 5 clients per round, but the federation has 4"):
        participation.check(4)


@pytest.mark.parametrize("participation", [Binomial(1.0), Everyone()], ids=str)
def test_one_client_is_enough_for_processes_without_a_size(participation: Equal) -> None:
    participation.check(1)


@given(processes())
def test_what_is_written_can_be_read(participation: Equal) -> None:
    assert participation_of(spelled(participation)) == participation


@pytest.mark.parametrize(
    ("text", "participation"),
    [(5, Fixed(5)), (" 5 ", Fixed(5)), ("Everyone", Everyone()), ("BETWEEN:1-2", Between(1, 2))],
)
def test_spelling_is_forgiving(text: str | int, participation: Equal) -> None:
    assert participation_of(text) == participation


@pytest.mark.parametrize(
    "text",
    [
        "",
        "some",
        "2.5",
        "binomial",
        "binomial:",
        "binomial:x",
        "between:3",
        "between:1-2-3",
    ],
)
def test_what_cannot_be_read_is_refused_with_what_can(text: str) -> None:
    with pytest.raises(SettingError, match=f"cannot read participation '{text}': give a number"):
        participation_of(text)


@pytest.mark.parametrize("text", ["0", "-3", "binomial:0", "binomial:2", "between:0-3", "between:4-2"])
def test_bounds_are_checked_when_reading(text: str) -> None:
    with pytest.raises(SettingError, match="participation: the"):
        participation_of(text)


@pytest.mark.parametrize("text", ["everyone:3", "5:3", "nowhere:Process", "tests.support.own_parts:Nothing"])
def test_what_is_no_place_of_a_process_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=f"participation '{text}'"):
        participation_of(text)


@pytest.mark.parametrize("given", [1.5, None, True, Fixed, ["3"]], ids=str)
def test_what_is_no_process_is_refused(given: object) -> None:
    with pytest.raises(SettingError, match="participation must be"):
        participation_of(given)
