from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego.federation.remote import RemoteFederation
from pflego.report import clients as on_clients
from pflego.report import embedded
from pflego.report.content import Content, content, gains
from pflego.report.words import Metric
from tests.support.reported import ODD, model, run


def of(*runs: pflego.Run, alone: bool | None = False) -> Content:
    """Content, checked to be plain JSON."""
    made = content(runs, alone=alone)
    json.dumps(asdict(made), allow_nan=False)
    return made


def test_curves_are_those_of_the_history_in_per_cent() -> None:
    trained = run(rounds=3, evaluate_every=2)
    for number, row in enumerate(trained.history, 1):
        row["loss"] = None if number == 2 else float("nan") if number == 3 else 0.123456789
        row["participants_accuracy"] = 0.25 * number
    trained.history[1]["everyone_accuracy"] = 0.5
    trained.history[2]["everyone_accuracy"] = None
    assert of(trained).runs[0].curves == {
        "loss": [(1, 0.12346)],
        "participants": [(1, 25.0), (2, 50.0), (3, 75.0)],
        "training": [],
        "everyone": [(2, 50.0)],
        "everyone_adapted": [],
    }


def test_a_very_long_curve_keeps_its_ends() -> None:
    trained = run(rounds=2, participation=4)
    trained.history = [{**trained.history[0], "round": t, "loss": float(t)} for t in range(1, 4001)]
    curve = of(trained).runs[0].curves["loss"]
    assert curve[0] == (1, 1.0)
    assert curve[-1] == (4000, 4000.0)
    assert len(curve) <= 1501


def test_every_client_has_its_own_figures() -> None:
    trained = run(rounds=4, evaluate_every=2)
    trained.evaluations = {2: [0.5, 0.5, None, 1.0], 4: [1.0, 0.25, None, 0.5]}
    found = of(trained).runs[0].clients
    assert found.ids == ["a", "b", "c", "d"]
    assert found.figures == [100.0, 25.0, None, 50.0]
    assert found.samples == [8, 9, 10, 11]
    assert found.tests == [6, 6, 6, 6]
    assert found.curve_rounds == [2, 4]
    assert found.curves == [[50.0, 100.0], [50.0, 25.0], [None, None], [100.0, 50.0]]
    assert found.classes == [[(0, 4), (1, 4)], [(1, 5), (2, 4)], [(0, 5), (2, 5)], [(0, 6), (1, 5)]]
    assert found.histogram is None


def test_a_confusion_matrix_counts_answers() -> None:
    trained = run()
    found = of(trained).runs[0].clients
    for place, client in enumerate(trained.federation):
        said = trained.personal_model(client.id)(client.x_test).argmax(dim=1)
        answers = Counter(zip(client.y_test.tolist(), client.classes[said].tolist(), strict=True))
        assert found.answers[place].confusion == [(*both, n) for both, n in sorted(answers.items())]
        right = sum(n for (true, predicted), n in answers.items() if true == predicted)
        assert found.figures is not None
        assert found.figures[place] == pytest.approx(100 * right / 6, abs=0.01)


def test_a_shared_head_answers_too() -> None:
    found = of(run(pflego.FedAvg(steps=2, labels="global"))).runs[0].clients
    assert set(found.answers) == {0, 1, 2, 3}
    assert all(sum(n for *_, n in answer.confusion or []) == 6 for answer in found.answers.values())


def test_a_regression_has_predictions_against_targets() -> None:
    trained = run(regression=True)
    made = of(trained)
    assert made.metric == Metric("rmse", 1.0, "", "", False)
    assert made.facts[2] == "regression"
    found = made.runs[0].clients
    assert found.classes is None
    for place, client in enumerate(trained.federation):
        pairs = np.array(found.answers[place].pairs)
        assert pairs[:, 0] == pytest.approx(client.y_test.numpy(), rel=1e-4)
        rmse = np.sqrt(np.mean((pairs[:, 0] - pairs[:, 1]) ** 2))
        assert found.figures is not None
        assert found.figures[place] == pytest.approx(rmse, rel=1e-3)


def test_gains_are_against_learning_alone() -> None:
    made = of(run(regression=True), alone=True)
    found = made.runs[0].clients
    assert found.alone is not None
    by_hand = replace(found, figures=[1.0, 2.0, None, 4.0], alone=[1.5, 1.0, 1.0, 4.0])
    assert gains(by_hand, made.metric) == [0.5, -1.0, None, 0.0]  # less is better
    losers = sum(gain is not None and gain < 0 for gain in gains(found, made.metric))
    lines = {line.label: line.text for line in made.runs[0].quality}
    assert lines["clients that do worse than alone"] == f"{losers} of 4"
    assert "better than" in made.headline


def test_without_test_data_there_is_the_loss() -> None:
    made = of(run(tests=0), alone=True)
    found = made.runs[0].clients
    assert found.figures == [None] * 4
    assert found.alone is None
    assert found.answers == {}
    assert made.runs[0].curves["participants"] == []
    assert len(made.runs[0].curves["loss"]) == 6
    assert "Nobody has test data." in made.runs[0].notes
    assert "is not known" in made.headline


def test_one_client_is_enough() -> None:
    made = of(run(ids=["only"], participation=1), alone=True)
    assert made.facts[0] == "1 client"
    assert made.runs[0].presence.everyone
    assert "It does as well as it would alone." in made.headline  # it was alone


def test_an_interrupted_run_says_where_it_stopped(tmp_path: Path) -> None:
    class Stop(pflego.Callback):
        def on_round(self, run: pflego.Run, row: dict[str, float | int | None]) -> None:
            if row["round"] == 3:
                raise KeyboardInterrupt

    whole = run()
    with pytest.raises(KeyboardInterrupt):
        pflego.train(
            whole.federation, model(), pflego.PFLEGO(steps=3), rounds=6, participation=2, evaluate_every=2,
            out=tmp_path, callbacks=[Stop()],
        )  # fmt: skip
    made = of(pflego.open_run(tmp_path, federation=whole.federation, model=model()))
    assert "stopped before round 4 of 6" in made.facts
    assert made.headline.startswith("After 3 rounds")


def test_data_elsewhere_leave_what_the_server_knows() -> None:
    trained = run()
    here = trained.federation
    away = RemoteFederation(here.ids, sizes=here.sizes, classes=here.classes, outputs=here.outputs)
    trained.problems = replace(trained.problems, federation=away)
    del trained.evaluations[6]
    made = of(trained, alone=True)
    found = made.runs[0].clients
    assert found.figures is not None
    assert found.samples == [8, 9, 10, 11]
    assert (found.tests, found.classes, found.alone, found.answers) == (None, None, None, {})
    assert len(made.runs[0].presence.shares) == 4
    assert [line.label for line in made.runs[0].cost][0:2] == ["passes over its data", "received by clients"]
    assert "not on this machine" in made.runs[0].notes[0]
    assert "Everyone was last evaluated after round 4." in made.runs[0].notes
    assert "cannot be tried here" in made.runs[0].why_not_alone


def test_of_a_million_clients_some_are_shown() -> None:
    def load(id: int | str) -> pflego.Client:
        rng = np.random.default_rng(int(id))
        return pflego.Client(id, rng.normal(size=(4, 3)).astype(np.float32), np.array([0, 1, 0, 1]))

    many = pflego.Federation.lazy(range(1_000_000), load, sizes=np.full(1_000_000, 4), classes=[0, 1])
    trained = pflego.train(
        many, model(), pflego.PFLEGO(steps=2), rounds=2, participation=3, evaluate_every=None
    )
    made = of(trained, alone=None)
    part = made.runs[0]
    assert len(part.clients.ids) == 2000
    assert (part.clients.ids[0], part.clients.ids[-1]) == ("0", "999999")
    assert part.clients.figures is None
    assert len(part.presence.shares) == 60
    assert part.presence.clients_a_row == 16_667
    assert (
        "Of 1,000,000 clients, 2,000 that lie evenly between the first and the last are shown"
        in part.notes[1]
    )


def test_of_many_clients_all_are_counted_and_the_worst_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_clients, "SHOWN", 3)
    monkeypatch.setattr(on_clients, "EXAMINED", 1)
    trained = run(rounds=2)
    trained.evaluations[2] = [0.75, 0.5, 0.0, 1.0]
    part = of(trained).runs[0]
    assert part.clients.ids == ["a", "b", "d"]
    assert part.clients.figures == [75.0, 50.0, 100.0]
    assert set(part.clients.answers) == {1}
    assert part.clients.histogram is not None
    assert sum(part.clients.histogram.counts) == 4
    assert part.clients.histogram.edges[0] == 0.0
    assert part.clients.histogram.edges[-1] == 100.0
    assert "Single answers are shown of the 1 clients with the worst figures." in part.notes


def test_runs_stand_side_by_side() -> None:
    made = of(run(pflego.PFLEGO(steps=3)), run(pflego.FedAvg(steps=3)), run(pflego.Local(steps=3)))
    assert made.title == "PFLEGO, FedAvg and Local on your own data"
    assert [part.name for part in made.runs] == ["PFLEGO", "FedAvg", "Local"]
    assert made.same_clients
    assert [line.label for line in made.runs[0].quality] == [line.label for line in made.runs[1].quality]
    assert "4 clients" in made.facts
    assert "does best" in made.headline or "equally well" in made.headline


def test_runs_with_the_adapted_figure_are_ranked_by_it_and_say_so() -> None:
    runs = [run(method, evaluate_adapted=True) for method in (pflego.PFLEGO(steps=3), pflego.FedAvg(steps=3))]
    made = of(*runs)
    best = max(runs, key=lambda one: one.history[-1]["everyone_adapted_accuracy"] or 0.0)
    assert "for everyone adapted" in made.headline
    assert made.headline.startswith(type(best.algorithm).__name__) or "equally well" in made.headline
    assert made.facts[-1].startswith("ranked by everyone adapted")
    assert not of(runs[0], run(pflego.FedAvg(steps=3))).facts[-1].startswith("ranked")


def test_other_clients_are_not_compared_one_by_one() -> None:
    made = of(run(), run(pflego.FedAvg(steps=3), ids=["x", "y", "z"]))
    assert not made.same_clients
    assert "4 clients" not in made.facts
    assert "seed 0" in made.facts


def test_a_regression_and_a_classification_do_not_compare() -> None:
    with pytest.raises(pflego.UserError, match="cannot stand side by side"):
        content([run(), run(regression=True)])


def test_cost_says_what_it_assumes() -> None:
    trained = run(pflego.PFLEGO(steps=3))
    lines = {line.label: line for line in of(trained).runs[0].cost}
    assert lines["passes over its data"].text == "1 + 1"
    assert lines["energy"].note == "an estimate: 20 GFLOP a joule, 1 joule a megabyte"
    assert lines["received"].value == 4 * (3 * 4 + 4)  # float32: a 3 x 4 layer and its bias
    assert lines["received by clients"].value == 6 * 2 * 64
    assert lines["arithmetic"].note == "for the client of median size, 10 samples"


def test_losses_on_the_way_are_said() -> None:
    trained = run()
    trained.history[0]["missing"] = 3
    trained.history[2]["rejected"] = 1
    facts = of(trained).facts
    assert "missing replies: 3" in facts
    assert "updates left out as not finite: 1" in facts


def test_names_cannot_break_out_of_the_page() -> None:
    text = embedded({"ids": ODD})
    assert "<" not in text
    assert "&" not in text
    assert json.loads(text) == {"ids": ODD}
