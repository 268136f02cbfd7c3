from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from pflego import UserError, paper
from pflego.algorithms.registry import methods
from pflego.federation.draws import check
from pflego.federation.participation import participation_of
from pflego.federation.roster import Client, Federation
from pflego.settings.experiment import Experiment
from pflego.settings.tables import Settings

PUBLISHED = paper.published()
SEVEN = {"fedper", "fedavg", "fedprox", "ditto", "fedrep", "fedbabu", "pflego"}
TABLE_1 = [name for name in paper.PRESETS if name != "omniglot"]
CASES = [(name, method) for name in paper.PRESETS for method in paper.methods(name)]


def test_there_is_a_preset_for_every_data_set_and_degree() -> None:
    sets = ["mnist", "cifar10", "emnist", "fashion-mnist"]
    assert set(TABLE_1) == {f"{data}-{degree}" for data in sets for degree in ("high", "medium", "none")}
    assert "omniglot" in paper.PRESETS


def test_table_1_has_84_cells_and_omniglot_8() -> None:
    accuracy = PUBLISHED.accuracy
    assert set(accuracy) == set(paper.PRESETS)
    assert all(set(accuracy[name]) == SEVEN for name in TABLE_1)
    assert sum(len(accuracy[name]) for name in TABLE_1) == 84
    assert set(accuracy["omniglot"]) == SEVEN | {"fedrecon"}


def test_every_cell_is_a_percentage_with_two_decimals() -> None:
    for row in PUBLISHED.accuracy.values():
        for cell in row.values():
            assert 0 < cell.interval < 3 < cell.mean < 100
            assert all(round(value, 2) == value for value in cell)


def test_every_published_accuracy_has_its_rates_and_the_other_way_round() -> None:
    for name, row in PUBLISHED.accuracy.items():
        assert set(paper.methods(name)) == set(row)


@pytest.mark.parametrize(
    ("name", "method", "cell"),
    [
        ("mnist-high", "pflego", (98.70, 0.21)),
        ("mnist-medium", "ditto", (94.05, 0.47)),
        ("mnist-none", "fedbabu", (93.98, 0.24)),
        ("cifar10-high", "fedper", (85.15, 1.08)),
        ("cifar10-medium", "fedrep", (66.64, 0.67)),
        ("cifar10-none", "fedprox", (60.00, 0.62)),
        ("emnist-high", "fedavg", (97.29, 0.54)),
        ("emnist-medium", "fedprox", (54.28, 0.58)),
        ("emnist-none", "fedbabu", (71.82, 0.16)),
        ("fashion-mnist-high", "ditto", (96.45, 0.47)),
        ("fashion-mnist-medium", "pflego", (89.84, 0.52)),
        ("fashion-mnist-none", "fedper", (77.44, 0.59)),
        ("omniglot", "fedrecon", (74.06, 1.19)),
        ("omniglot", "pflego", (75.85, 1.21)),
    ],
)
def test_accuracies_are_the_published_ones(name: str, method: str, cell: tuple[float, float]) -> None:
    assert PUBLISHED.accuracy[name][method] == cell


@pytest.mark.parametrize(
    ("method", "means", "intervals"),
    [
        ("fedper", 943.87, 6.23),
        ("fedavg", 997.49, 5.72),
        ("fedprox", 980.06, 5.99),
        ("ditto", 999.71, 5.25),
        ("fedrep", 983.67, 5.80),
        ("fedbabu", 991.91, 5.55),
        ("pflego", 1016.18, 5.23),
    ],
)
def test_rows_of_table_1_add_up_to_the_published_sums(method: str, means: float, intervals: float) -> None:
    # Each method's twelve cells, added up from the paper's own rows.
    cells = [PUBLISHED.accuracy[name][method] for name in TABLE_1]
    assert sum(cell.mean for cell in cells) == pytest.approx(means)
    assert sum(cell.interval for cell in cells) == pytest.approx(intervals)


def test_seconds_a_round_are_the_published_ones() -> None:
    assert PUBLISHED.seconds == {
        "omniglot": {
            "fedrep": 10.571,
            "fedbabu": 16.814,
            "fedprox": 18.632,
            "ditto": 26.105,
            "fedper": 14.436,
            "fedavg": 16.553,
            "pflego": 7.024,
        }
    }


def test_what_the_text_claims_can_be_held_against_the_tables() -> None:
    row = PUBLISHED.accuracy["cifar10-medium"]
    others = max(cell.mean for method, cell in row.items() if method != "pflego")
    assert row["pflego"].mean - others == pytest.approx(PUBLISHED.claims["cifar10_medium_lead"], abs=0.5)


def test_the_curves_behind_the_figures_are_settings() -> None:
    assert sorted(figure["number"] for figure in PUBLISHED.figures.values()) == list(range(2, 10))
    for figure in PUBLISHED.figures.values():
        assert figure["data"] in PUBLISHED.data_sets
        assert set(figure.get("methods", [])) <= set(methods())
        levels = figure["participation"]
        for level in levels if isinstance(levels, list) else [levels]:
            check(participation_of(level), range(figure["clients"]))
    assert PUBLISHED.figures["fedrecon"]["steps"] == [5, 10, 25, 50, 75, 100]
    assert PUBLISHED.figures["participation"]["participation"] == [20, 40, 60, 100]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_every_preset_makes_its_method(name: str, method: str) -> None:
    settings = paper.preset(name, method)
    algorithm = Settings.of(settings).algorithm
    assert type(algorithm) is methods()[method]
    made = algorithm.settings()
    assert {key: made[key] for key in settings.keys() & made.keys()} == {
        key: settings[key] for key in settings.keys() & made.keys()
    }
    assert {"data", "model", "clients", "participation", "rounds", "steps", "client_lr"} <= settings.keys()
    assert ("server_lr" in settings) == (method in {"pflego", "fedrecon"})
    assert ("mu" in settings) == (method in {"fedprox", "ditto"})


@pytest.mark.parametrize("name", TABLE_1)
def test_a_degree_is_two_classes_half_of_them_or_all(name: str) -> None:
    data, _, degree = name.rpartition("-")
    settings, classes = paper.preset(name), PUBLISHED.data_sets[data]["classes"]
    assert settings["data"] == data
    assert settings["classes_per_client"] == {"high": 2, "medium": classes // 2, "none": classes}[degree]
    assert (settings["clients"], settings["participation"], settings["rounds"]) == (100, 20, 200)


@pytest.mark.parametrize(
    ("name", "method", "rates"),
    [
        ("mnist-none", "pflego", {"client_lr": 0.189, "server_lr": 0.003}),
        ("mnist-medium", "ditto", {"client_lr": 0.007, "mu": 0.5}),
        ("cifar10-high", "pflego", {"client_lr": 0.002, "server_lr": 0.001}),
        ("cifar10-high", "fedrep", {"client_lr": 0.005}),
        ("cifar10-medium", "pflego", {"client_lr": 0.0189, "server_lr": 0.003}),
        ("cifar10-none", "fedprox", {"client_lr": 0.006, "mu": 0.25}),
        ("emnist-medium", "ditto", {"client_lr": 0.007, "mu": 0.25}),
        ("emnist-none", "pflego", {"client_lr": 0.03, "server_lr": 0.003}),
        ("fashion-mnist-high", "fedrep", {"client_lr": 0.003}),
        ("fashion-mnist-high", "ditto", {"client_lr": 0.005, "mu": 0.25}),
        ("fashion-mnist-none", "pflego", {"client_lr": 0.007, "server_lr": 0.003}),
        ("omniglot", "ditto", {"client_lr": 0.007, "mu": 0.5}),
        ("omniglot", "fedrecon", {"client_lr": 0.009, "server_lr": 0.003}),
        ("omniglot", "pflego", {"client_lr": 0.1341, "server_lr": 0.003}),
    ],
)
def test_rates_are_the_published_ones(name: str, method: str, rates: dict[str, float]) -> None:
    settings = paper.preset(name, method)
    assert {key: settings[key] for key in rates} == rates


def test_omniglot_has_an_alphabet_a_client() -> None:
    settings = paper.preset("omniglot")
    assert "classes_per_client" not in settings
    assert (settings["clients"], settings["participation"], settings["rounds"]) == (50, 10, 1000)


def test_methods_do_what_the_tables_were_made_with() -> None:
    made = {method: paper.preset("omniglot", method) for method in paper.methods("omniglot")}
    assert {m: s["head_init"] for m, s in made.items() if s["head_init"] != "uniform"} == {
        "fedbabu": "orthonormal"
    }
    assert {m for m, s in made.items() if s.get("labels") == "local"} == {
        "fedavg",
        "fedprox",
        "ditto",
        "fedbabu",
    }
    assert {m for m, s in made.items() if s.get("server_optimizer") == "adam"} == {"pflego", "fedrecon"}
    assert made["fedrep"]["body_steps"] == 5
    assert made["fedbabu"]["momentum"] == 0.9
    assert all(settings["steps"] == 50 for settings in made.values())


def test_a_preset_builds_an_experiment() -> None:
    x, y = np.zeros((2, 28, 28), np.float32), np.array([0, 1])
    clients = [Client(i, x, y, x, y) for i in range(100)]
    experiment = Experiment.build(paper.preset("mnist-high"), federation=Federation(clients))
    assert experiment.model.features == PUBLISHED.data_sets["mnist"]["features"]


def test_a_preset_is_the_callers_own() -> None:
    paper.preset("mnist-high")["rounds"] = 1
    assert paper.preset("mnist-high")["rounds"] == 200


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown preset 'mnist-hihg': did you mean 'mnist-high'"):
        paper.preset("mnist-hihg")
    with pytest.raises(UserError, match="unknown preset 'nothing'"):
        paper.methods("nothing")
    with pytest.raises(
        UserError, match="unknown method of the paper's mnist-high 'fedrepp': did you mean 'fedrep'"
    ):
        paper.preset("mnist-high", "fedrepp")


@pytest.mark.parametrize("method", ["local", "fedrecon"])
def test_a_method_without_published_rates_is_refused(method: str) -> None:
    with pytest.raises(UserError, match=f"unknown method of the paper's mnist-high '{method}'"):
        paper.preset("mnist-high", method)


def test_methods_are_known_in_capitals_too() -> None:
    assert paper.preset("mnist-high", "FedAvg") == paper.preset("mnist-high", "fedavg")


def test_the_papers_figures_are_read_without_torch() -> None:
    code = (
        "import sys, pflego.paper as p; p.published(); p.preset('omniglot'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
