"""Federations whose truth is known, because they were made so."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.advice.contenders import FEDERATED, PERSONAL
from pflego.advice.start import choose
from pflego.advice.statistics import Interval
from pflego.advice.verdict import Answer, Verdict
from pflego.federation.remote import RemoteFederation
from pflego.runs.cost import Cost
from pflego.settings.experiment import Experiment
from pflego.settings.tables import read_settings

QUICK = {"steps": 8, "rounds": 4}


def backbone() -> pflego.Model:
    torch.manual_seed(0)
    return pflego.Model(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), features=16)


def clusters(
    clients: int, samples: int, *, noise: float, permuted: bool = False, classes: int = 4
) -> pflego.Federation:
    """Clients that draw from the same clouds of points; permuted: each has names of its own for them."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(classes, 8))
    members = []
    for k in range(clients):
        kinds = generator.permutation(np.arange(samples) % classes)
        x = centres[kinds] + noise * generator.normal(size=(samples, 8))
        y = generator.permutation(classes)[kinds] if permuted else kinds
        members.append(pflego.Client(k, x.astype(np.float32), y))
    return pflego.Federation(members)


@cache
def advice(case: Literal["alike and small", "conflicting", "large"]) -> pflego.Advice:
    made = {
        "alike and small": lambda: clusters(12, 12, noise=1.0),
        "conflicting": lambda: clusters(8, 40, noise=1.0, permuted=True),
        "large": lambda: clusters(6, 300, noise=0.4),
    }
    return pflego.advise(made[case](), backbone(), **QUICK)  # type: ignore[arg-type]


def test_clients_that_are_alike_and_have_little_data_do_best_with_one_model() -> None:
    found = advice("alike and small")
    assert found.federating.verdict == "yes"
    assert found.personalising.verdict == "no"
    assert found.start.contender == "one-model"
    assert found.start.options["head_init"] == "centred"
    assert not found.differences.labels.real
    assert "one model for everybody does better" in str(found)


def test_clients_that_contradict_each_other_need_heads_of_their_own() -> None:
    found = advice("conflicting")
    assert found.personalising.verdict == "yes"
    assert found.personalising.gain > 0.2
    assert found.start.contender != "one-model"
    own, shared = found.differences.own_heads[0], found.differences.one_model[0]
    assert own.share is not None
    assert own.share > 0.7  # with heads of their own they want the same of a backbone
    assert shared.share is not None
    assert shared.share < 0.2  # and of one model they do not
    assert shared.within > 0.5  # which is no noise
    assert "hardly agrees" in str(found)


def test_clients_with_plenty_of_data_need_nobody() -> None:
    found = advice("large")
    assert found.federating.verdict == "no difference"
    assert found.start.contender.startswith("alone")
    assert found.start.algorithm == "local"
    assert "Let every client learn alone." in str(found)


def test_it_says_who_would_lose() -> None:
    one_model, own = advice("alike and small"), advice("conflicting")
    assert [one.otherwise for one in one_model.losers] == ["alone"]
    assert "with one model" in [one.otherwise for one in own.losers]
    for found in (one_model, own):
        standing = next(one for one in found.standings if one.name == found.start.contender)
        for losers in found.losers:
            assert losers.clients == found.compared
            assert losers.worst_tenth == standing.worst_tenth
            assert all(client in found.federating.gains for client in losers.losses)
    assert "would be better off" in own.paragraphs()["Who would lose?"]


def test_advice_is_a_function_of_the_seed() -> None:
    federation = clusters(6, 10, noise=1.0)

    def figures(seed: int) -> str:
        found = pflego.advise(federation, backbone(), steps=2, rounds=1, seed=seed).figures()
        plain = json.loads(json.dumps(found))
        del plain["seconds"], plain["words"]["What does a round cost a client?"]
        for standing in plain["standings"]:
            del standing["cost"]
        return json.dumps(plain)

    found = figures(0)
    assert figures(0) == found
    assert figures(1) != found


def test_test_data_are_never_looked_at() -> None:
    whole = clusters(6, 20, noise=1.0)
    nonsense = pflego.Federation(
        [
            pflego.Client(c.id, c.x_train, c.y_train, c.x_train[:5] * 1e3, torch.zeros(5, dtype=torch.long))
            for c in whole
        ]
    )
    one, other = (pflego.advise(fed, backbone(), steps=2, rounds=1) for fed in (whole, nonsense))
    assert one.federating == other.federating
    assert one.personalising == other.personalising
    assert one.differences == other.differences


def test_a_regression_is_advised_by_its_error() -> None:
    found = pflego.advise(pflego.load("diabetes", clients=6), steps=2, rounds=1)
    assert found.metric.name == "rmse"
    assert "rmse" in str(found)
    assert all(0.3 < standing.figure < 3 for standing in found.standings)
    assert found.differences.labels.value < 1


def test_of_a_large_federation_some_clients_are_looked_at_and_only_they_are_loaded() -> None:
    loaded = set()

    def load(client_id: int | str) -> pflego.Client:
        loaded.add(client_id)
        generator = np.random.default_rng(int(client_id))
        y = np.arange(10) % 2
        x = generator.normal(size=(10, 8)) + y[:, None]
        return pflego.Client(client_id, x.astype(np.float32), y)

    federation = pflego.Federation.lazy(range(10**6), load, sizes=np.full(10**6, 10), classes=[0, 1])
    found = pflego.advise(federation, backbone(), steps=2, rounds=1, look_at=7)
    assert (found.clients, found.looked_at) == (10**6, 7)
    assert len(loaded) <= 8
    assert "Looked at 7 of 1,000,000 clients" in str(found)
    assert "more to learn from than it had here" in str(found)
    assert found.start.participation == "20"


def test_clients_of_one_class_or_one_sample_learn_with_the_others_but_are_not_compared() -> None:
    members = list(clusters(6, 20, noise=1.0))
    one_class = pflego.Client("one class", members[0].x_train, torch.zeros(20, dtype=torch.long))
    one_sample = pflego.Client("one sample", members[0].x_train[:1], members[0].y_train[:1])
    found = pflego.advise(pflego.Federation([*members, one_class, one_sample]), backbone(), steps=2, rounds=1)
    assert (found.looked_at, found.compared) == (8, 6)
    assert "one class" not in found.federating.gains
    assert "2 clients of a single class or sample" in str(found)


def test_small_clients_are_told_that_classes_are_missing() -> None:
    members = [pflego.Client(k, np.eye(8, dtype=np.float32), np.arange(8)) for k in range(6)]
    found = pflego.advise(pflego.Federation(members), backbone(), steps=2, rounds=1)
    assert "100 % of the held-out samples are of a class that their client has no other sample of" in str(
        found
    )


@pytest.mark.parametrize(
    ("federation", "options", "reason"),
    [
        (clusters(1, 8, noise=1.0), {}, "has nobody to federate with"),
        (clusters(4, 8, noise=1.0, classes=1), {}, "there is nothing to compare"),
        (RemoteFederation([1, 2], sizes=[3, 3], classes=[0], outputs=1), {}, "not on this machine"),
        (clusters(4, 8, noise=1.0), {"splits": 1}, "splits must be 2 or more"),
        (clusters(4, 8, noise=1.0), {"look_at": 1}, "look_at must be 2 or more"),
        (clusters(4, 8, noise=1.0), {"rounds": 0}, "rounds must be a whole number above 0"),
        (clusters(4, 8, noise=1.0), {"budget_seconds": 0}, "budget_seconds must be a number above 0"),
        (clusters(4, 8, noise=1.0), {"participation": 5}, "but the federation has 4"),
        (clusters(4, 8, noise=1.0), {"steps": 0}, "steps must be a whole number above 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_advised_is_refused(
    federation: pflego.Federation, options: dict[str, int], reason: str
) -> None:
    with pytest.raises(pflego.UserError, match=reason):
        pflego.advise(federation, backbone(), **options)  # type: ignore[arg-type]


def said(verdict: Verdict) -> Answer:
    return Answer("?", verdict, 0.0, Interval(0, 0), Interval(0, 0), "clients", 0, 0, 6, {}, (), (), False)


@pytest.mark.parametrize(
    ("federating", "personalising", "common", "expected"),
    [
        ("can't tell", "yes", "yes", "alone"),
        ("no difference", "yes", "yes", "alone"),
        ("no", "can't tell", "can't tell", "alone"),
        ("yes", "no", "yes", "one-model"),
        ("probably", "probably not", "no", "one-model"),
        ("yes", "yes", "can't tell", "own-heads"),
        ("yes", "yes", "probably", "common-head"),
        ("yes", "can't tell", "no", "own-heads"),
        ("probably", "no difference", "yes", "common-head"),
    ],
)
def test_the_simplest_that_was_not_shown_to_be_worse_is_chosen(
    federating: Verdict, personalising: Verdict, common: Verdict, expected: str
) -> None:
    cost = Cost(10, 100, 1, 1, 0, 0, 0, 0.0, "cpu")
    costs = dict.fromkeys([*FEDERATED, *PERSONAL], cost)
    name, why = choose(said(federating), said(personalising), said(common), "alone", costs)
    assert name == expected
    assert why


def test_what_to_start_with_makes_the_same_federation_and_method(tmp_path: Path) -> None:
    federation = pflego.load("digits", clients=6, partition="dirichlet", alpha=0.7, seed=3)
    found = pflego.advise(federation, steps=2, rounds=1, participation=3, seed=3)
    assert found.save(tmp_path / "advice") == tmp_path / "advice"
    assert {file.name for file in (tmp_path / "advice").iterdir()} == {
        "advice.json",
        "advice.png",
        "start.toml",
    }
    experiment = Experiment.build(read_settings(tmp_path / "advice" / "start.toml"))
    assert experiment.federation.fingerprint() == federation.fingerprint()
    assert experiment.algorithm.name == found.start.algorithm
    assert experiment.algorithm.settings().items() >= found.start.options.items()
    assert experiment.settings.value("participation") == "3"
    figures = json.loads((tmp_path / "advice" / "advice.json").read_text())
    assert figures["verdict"] == found.start.verdict
    assert figures["start"]["settings"] == read_settings(tmp_path / "advice" / "start.toml")
    assert (tmp_path / "advice" / "advice.png").read_bytes().startswith(b"\x89PNG")


def test_without_settings_the_start_is_a_line_of_python(tmp_path: Path) -> None:
    found = advice("conflicting")
    federation, model = clusters(8, 40, noise=1.0, permuted=True), backbone()
    line = found.start.command.replace(f"rounds={found.start.rounds}", "rounds=1, progress=False")
    run = eval(line, {"pflego": pflego, "federation": federation, "model": model})
    assert isinstance(run, pflego.Run)
    assert run.algorithm.name == found.start.algorithm
    assert found.start.settings is None
    found.save(tmp_path)
    assert not (tmp_path / "start.toml").exists()


def test_a_model_that_python_made_has_no_name_for_a_command() -> None:
    federation = pflego.load("digits", clients=4, classes_per_client=5)
    model = pflego.Model(nn.Linear(64, 8), features=8, head=lambda m, k: nn.Linear(m, k))
    found = pflego.advise(federation, model, steps=1, rounds=1)
    assert found.start.command.startswith("pflego.train(federation, model, pflego.")
    assert found.common_head is None  # heads that are not linear have no common one
    assert "common head" not in str(found)
