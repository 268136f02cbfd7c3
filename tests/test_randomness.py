import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pflego.randomness import entropy, numpy_generator, seeded, torch_generator

texts = st.text("ab0\0", max_size=4)
keys = st.tuples(st.integers(), st.sampled_from(["cohort", "head"]), st.integers(0), texts | st.integers())


@given(keys, keys)
def test_entropy_differs_whenever_an_argument_does(
    one: tuple[int, str, int, str | int], other: tuple[int, str, int, str | int]
) -> None:
    found = [entropy(seed, purpose, round_number=t, client=i) for seed, purpose, t, i in (one, other)]
    same = [str(part) for part in one] == [str(part) for part in other]
    assert (found[0] == found[1]) == same
    assert all(0 <= bits < 2**127 for bits in found)


def test_arguments_that_run_together_are_kept_apart() -> None:
    assert entropy(1, "a", round_number=11, client=1) != entropy(1, "a", round_number=1, client=11)
    assert entropy(1, "1a") != entropy(11, "a")


def test_generators_are_functions_of_their_key_alone() -> None:
    first = numpy_generator(0, "cohort", round_number=3).random(4)
    np.random.default_rng(0).random()
    assert np.array_equal(numpy_generator(0, "cohort", round_number=3).random(4), first)
    assert not np.array_equal(numpy_generator(0, "cohort", round_number=4).random(4), first)
    weights = torch.rand(4, generator=torch_generator(0, "head", client="a"))
    torch.rand(1)
    assert torch.equal(torch.rand(4, generator=torch_generator(0, "head", client="a")), weights)
    assert not torch.equal(torch.rand(4, generator=torch_generator(0, "head", client="b")), weights)


def test_the_global_generators_are_left_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(4, generator=torch_generator(0, "head"))
    assert torch.equal(torch.get_rng_state(), before)


@given(st.integers())
def test_any_whole_number_is_a_seed(seed: int) -> None:
    numpy_generator(seed, "cohort").random()
    torch.rand(1, generator=torch_generator(seed, "head"))


def test_layers_draw_from_a_seed_and_nothing_is_left_of_it() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        wanted = torch.nn.Linear(3, 2).weight
    before, noted = torch.get_rng_state(), torch.cuda._lazy_seed_tracker.get_calls()
    with seeded(7):
        assert torch.equal(torch.nn.Linear(3, 2).weight, wanted)
    assert torch.equal(torch.get_rng_state(), before)
    assert (
        torch.cuda._lazy_seed_tracker.get_calls() == noted
    )  # what a device that is not used yet will begin with
