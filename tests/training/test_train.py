from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.errors import SettingError
from pflego.federation.draws import cohort
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.training.progress import Progress
from tests.support.reference import distance, gradients, world

KEYS = {
    "round", "participants", "loss", "participants_accuracy", "seconds",
    "bytes_up", "bytes_down", "forward_passes", "backward_passes", "missing", "rejected", "refused", "fallbacks",
    "above_bound", "rate_over_bound",
}  # fmt: skip


def test_history_has_the_figures_of_every_round() -> None:
    twin = world(dtype=torch.float32)
    run = pflego.train(
        twin.federation, twin.model, pflego.PFLEGO(), rounds=5, participation=2, evaluate_every=2
    )
    theta_bytes = 4 * (4 * 6 + 4)
    for number, row in enumerate(run.history, start=1):
        evaluated = {"everyone_accuracy"} if number in {2, 4, 5} else set()
        assert row.keys() == KEYS | evaluated
        assert row["round"] == number
        assert row["participants"] == 2
        assert row["bytes_up"] == row["bytes_down"] == 2 * theta_bytes
        assert 0 <= (row["participants_accuracy"] or 0) <= 1
        assert (row["seconds"] or 0) > 0


def test_without_an_interval_everyone_is_evaluated_after_the_last_round_only() -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=3, evaluate_every=0)
    assert [("everyone_accuracy" in row) for row in run.history] == [False, False, True]


def test_participants_are_judged_before_aggregation_and_everyone_after() -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(server_lr=0.5), rounds=1, participation=3)
    heads = {client: run.states[client]["head"].numpy() for client in run.states}
    new = {name: tensor.numpy() for name, tensor in run.shared.items()}

    def correct(V: np.ndarray, v: np.ndarray, i: int) -> int:
        client, W = twin.federation[i], heads[f"c{i}"]
        z = np.tanh(client.x_test.numpy() @ V.T + v) @ W[:, :-1].T + W[:, -1]
        return int((client.classes.numpy()[z.argmax(axis=1)] == client.y_test.numpy()).sum())

    chosen = cohort(pflego.Fixed(3), range(5), seed=0, number=1)
    before = sum(correct(twin.net.V, twin.net.v, i) for i in chosen)
    after = sum(correct(new["0.weight"], new["0.bias"], i) for i in range(5))
    assert run.history[0]["participants_accuracy"] == before / 12
    assert run.history[0]["everyone_accuracy"] == after / 20
    rows = run.evaluate()
    assert [row["id"] for row in rows] == list(twin.federation.ids)
    assert sum((row["accuracy"] or 0) * row["samples"] for row in rows) == pytest.approx(after)


def test_participants_are_judged_on_their_training_data_where_that_is_asked_for() -> None:
    twin = world()
    settings: dict[str, Any] = {"rounds": 1, "participation": 3}
    algorithm = pflego.PFLEGO(steps=4, server_lr=0.5)
    run = pflego.train(twin.federation, twin.model, algorithm, evaluate_training=True, **settings)
    right = samples = 0
    for i in cohort(pflego.Fixed(3), range(5), seed=0, number=1):
        client, W = twin.federation[i], run.states[f"c{i}"]["head"].numpy()
        z = np.tanh(client.x_train.numpy() @ twin.net.V.T + twin.net.v) @ W[:, :-1].T + W[:, -1]
        right += int((client.classes.numpy()[z.argmax(axis=1)] == client.y_train.numpy()).sum())
        samples += len(z)
    assert run.history[0]["participants_training_accuracy"] == right / samples
    plain = pflego.train(twin.federation, twin.model, algorithm, **settings)
    assert "participants_training_accuracy" not in plain.history[0]
    assert plain.history[0]["forward_passes"] == run.history[0]["forward_passes"]
    with pytest.raises(SettingError, match="evaluate_training"):
        pflego.train(
            twin.federation,
            twin.model,
            algorithm,
            evaluate_training=True,
            engine="flower-simulation",
            **settings,
        )


def test_unequal_clients_one_sample_and_no_test_set_train_together() -> None:
    rng = np.random.default_rng(0)
    clients = [
        pflego.Client("one", rng.normal(size=(1, 6)), np.array([3])),
        pflego.Client(
            "many", rng.normal(size=(50, 6)), np.arange(50) % 5, rng.normal(size=(9, 6)), np.arange(9) % 5
        ),
        pflego.Client(
            "stranger", rng.normal(size=(2, 6)), np.array([1, 2]), rng.normal(size=(2, 6)), np.array([7, 8])
        ),
    ]
    model = pflego.Model(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), features=4)
    run = pflego.train(pflego.Federation(clients), model, pflego.PFLEGO(), rounds=5)
    assert [run.states[c.id]["head"].shape for c in clients] == [(1, 5), (5, 5), (2, 5)]
    one, many, stranger = run.evaluate()
    assert (one["samples"], one["loss"], one["accuracy"]) == (0, None, None)
    assert many["samples"] == 9
    assert (stranger["accuracy"], stranger["loss"]) == (0.0, None)
    assert all(math.isfinite(row["loss"] or math.nan) for row in run.history)


def test_regression_learns_diabetes() -> None:
    federation = pflego.load("diabetes", clients=4, seed=0)
    model = pflego.models.build("mlp", (10,))
    run = pflego.train(federation, model, pflego.PFLEGO(steps=10, client_lr=0.01), rounds=10)
    assert (run.history[-1]["everyone_rmse"] or 9) < 0.9  # the targets have unit variance
    assert "everyone_accuracy" not in run.history[-1]
    assert all(row["rmse"] is not None for row in run.evaluate())


def test_the_models_own_weights_are_left_alone() -> None:
    twin = world()
    before = twin.model.weights()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(server_lr=0.1), rounds=2)
    assert all(torch.equal(before[name], tensor) for name, tensor in twin.model.weights().items())
    assert not torch.equal(run.shared["0.weight"], before["0.weight"])


def test_a_run_is_a_function_of_its_seed() -> None:
    twin = world(dtype=torch.float32)
    runs = [
        pflego.train(
            twin.federation, twin.model, pflego.PFLEGO(head_init="uniform"), rounds=3, participation=2, seed=s
        )
        for s in (1, 1, 2)
    ]
    assert torch.equal(runs[0].shared["0.weight"], runs[1].shared["0.weight"])
    assert not torch.equal(runs[0].shared["0.weight"], runs[2].shared["0.weight"])


def beginning_at(place: int, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Put an array so many floats after the beginning of a cache line."""
    room = np.empty(values.size + 32, values.dtype)
    first = -(room.ctypes.data // values.itemsize) % 16 + place
    there = room[first : first + values.size].reshape(values.shape)
    there[:] = values
    return there


@pytest.mark.parametrize("place", [1, 2, 4, 8, 13])
def test_where_inputs_lie_in_memory_changes_no_bit(place: int) -> None:
    """MKL rounds a product of (33, 13) and (13, 7) differently where an operand begins elsewhere, and did."""
    rng = np.random.default_rng(0)
    x, y = rng.random((3, 33, 13), np.float32), rng.integers(0, 2, (3, 33))

    def learned(at: int) -> list[torch.Tensor]:
        inputs = [beginning_at(at, one) for one in x]
        federation = pflego.Federation([pflego.Client(i, inputs[i], y[i], inputs[i], y[i]) for i in range(3)])
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(13, 7), nn.Tanh())
        run = pflego.train(federation, pflego.Model(backbone, 7), pflego.PFLEGO(steps=3), rounds=5)
        losses = torch.tensor([row["loss"] for row in run.history], dtype=torch.float64)
        return [*run.shared.values(), *(run.states[i]["head"] for i in range(3)), losses]

    assert all(map(torch.equal, learned(place), learned(0)))


def test_a_personal_model_is_the_clients_own() -> None:
    federation = pflego.load("digits", clients=5, classes_per_client=3)
    run = pflego.train(federation, pflego.models.build("mlp", (64,)), pflego.PFLEGO(), rounds=10)
    for client, row in zip(federation, run.evaluate(), strict=True):
        model = run.personal_model(client.id)
        assert (model.predict(client.x_test) == client.y_test).double().mean() == row["accuracy"]
        assert model(client.x_test).shape == (row["samples"], 3)


def test_local_learns_alone() -> None:
    twin = world()
    alone = pflego.Local(steps=3, client_lr=0.2, head_init="zeros")
    run = pflego.train(twin.federation, twin.model, alone, rounds=2)
    assert run.shared == {}
    assert run.history[0]["bytes_up"] == run.history[0]["bytes_down"] == 0
    assert run.history[0]["forward_passes"] == run.history[0]["backward_passes"] == 3
    V, v = twin.net.V, twin.net.v
    for i, site in enumerate(twin.sites):
        twin.net.V, twin.net.v, W = V, v, twin.heads[i]
        for _ in range(6):
            dV, dv, dW = gradients(twin.net, W, site)
            twin.net.V, twin.net.v, W = twin.net.V - 0.2 * dV, twin.net.v - 0.2 * dv, W - 0.2 * dW
        state = run.states[f"c{i}"]
        assert distance(state["head"], W) < 1e-10
        assert distance(state["0.weight"], twin.net.V) < 1e-10
        assert distance(state["0.bias"], twin.net.v) < 1e-10


def test_a_million_clients_are_a_number() -> None:
    def load(client: str | int) -> pflego.Client:
        rng = np.random.default_rng(int(client))
        return pflego.Client(client, rng.normal(size=(5, 6)), rng.integers(3, size=5))

    ids = range(1_000_000)
    federation = pflego.Federation.lazy(ids, load, sizes=np.full(len(ids), 5), classes=[0, 1, 2])
    model = pflego.Model(nn.Linear(6, 4), features=4)
    seen: list[HistoryRow] = []

    class Stop(pflego.Callback):
        def on_round(self, run: Run, row: HistoryRow) -> None:
            seen.append(row)
            raise KeyboardInterrupt

    algorithm = pflego.PFLEGO(steps=2)
    with pytest.raises(KeyboardInterrupt):
        pflego.train(federation, model, algorithm, rounds=9, participation=20, callbacks=[Stop()])
    assert seen[0]["participants"] == 20


def test_callbacks_hear_of_start_rounds_and_end() -> None:
    heard: list[str] = []

    class Listener(pflego.Callback):
        def on_start(self, run: Run) -> None:
            heard.append("start")

        def on_round(self, run: Run, row: HistoryRow) -> None:
            heard.append(f"round {row['round']} of {len(run.history)}")

        def on_end(self, run: Run) -> None:
            heard.append("end")

    twin = world()
    pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=2, callbacks=[Listener()])
    assert heard == ["start", "round 1 of 1", "round 2 of 2", "end"]


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    twin = world()
    pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=2, progress=True)
    err = capsys.readouterr().err
    assert err.startswith("pflego: round 2 of 2, loss ")
    assert err.endswith(" 0 s left\n")


def test_progress_is_a_bar_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    assert Progress.in_terminal()
    twin = world()
    pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=2)
    err = capsys.readouterr().err
    assert "2/2" in err
    assert "accuracy" in err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rounds": 0}, "rounds must be a whole number above 0"),
        ({"participation": 6}, "asks for 6 clients .* the federation has 5"),
        ({"participation": pflego.Between(2, 9)}, "asks for 9 clients"),
        ({"evaluate_every": -1}, "evaluate_every"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"seed": 0.5}, "seed"),
        ({"resume": True}, "say where it is"),
        ({"device": "abacus"}, "device 'abacus' cannot be used here"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(wrong: dict[str, object], said: str) -> None:
    twin = world()
    with pytest.raises(pflego.UserError, match=said):
        pflego.train(twin.federation, twin.model, pflego.PFLEGO(), **{"rounds": 1, **wrong})  # type: ignore[arg-type]


def test_a_class_is_no_algorithm() -> None:
    twin = world()
    with pytest.raises(pflego.UserError, match=r"PFLEGO\(steps=50\)"):
        pflego.train(twin.federation, twin.model, pflego.PFLEGO, rounds=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "said"),
    [(int, "engine int failed: TypeError"), (lambda *_: 3, "must give a pflego Engine, not 3")],
)
def test_what_makes_no_engine_is_refused(engine: Any, said: str) -> None:
    twin = world()
    with pytest.raises(SettingError, match=said):
        pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=1, engine=engine)


@pytest.mark.parametrize(
    ("transform", "said"), [(lambda *_: {}, "must give tensors by the names"), (lambda: 3, "<lambda> failed")]
)
def test_a_transform_that_loses_tensors_is_refused(transform: Any, said: str) -> None:
    twin = world()
    with pytest.raises(SettingError, match=said):
        pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=1, transforms=[transform])


def test_a_head_init_that_fails_is_named() -> None:
    twin = world()
    method = pflego.PFLEGO(head_init=int)  # type: ignore[arg-type]
    with pytest.raises(pflego.ModelError, match=r"head_init int.* failed: TypeError"):
        pflego.train(twin.federation, twin.model, method, rounds=1)


def test_a_backbone_alone_is_no_model() -> None:
    with pytest.raises(pflego.UserError, match=r"pflego.Model\(backbone, features=M\), not a Linear"):
        pflego.train(world().federation, nn.Linear(6, 4), pflego.PFLEGO(), rounds=1)  # type: ignore[arg-type]


def test_a_share_is_no_number_of_clients() -> None:
    twin = world()
    with pytest.raises(pflego.SettingError, match=r"participation must be a number of clients .* not 1\.0"):
        pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=1, participation=1.0)  # type: ignore[arg-type]


def test_features_that_do_not_match_the_backbone_are_refused() -> None:
    twin = world()
    model = pflego.Model(nn.Linear(6, 3), features=4)
    with pytest.raises(pflego.UserError, match=r"to \(7, 3\), but features=4 promises \(7, 4\)"):
        pflego.train(twin.federation, model, pflego.PFLEGO(), rounds=1)


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    twin = world()
    with pytest.raises(OSError, match="cannot write to the folder"):
        pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=1, out=tmp_path / "file" / "run")


def test_arguments_of_a_wrong_kind_are_refused_by_name() -> None:
    federation = pflego.load("digits", clients=2, classes_per_client=5)
    model, method = pflego.Model(nn.Linear(64, 2), features=2), pflego.PFLEGO(steps=1)
    for name, odd in [
        ("speed", 3),
        ("speed", None),
        ("callbacks", None),
        ("callbacks", [print]),
        ("out", "a\0b"),
    ]:
        with pytest.raises(SettingError, match=name):
            pflego.train(federation, model, method, rounds=1, **{name: odd})  # type: ignore[arg-type]
    for odd in (None, [], "digits"):
        with pytest.raises(SettingError, match="federation"):
            pflego.train(odd, model, method, rounds=1)  # type: ignore[arg-type]
    sizes: list[Any] = [3, np.int64(3)]
    whole, sliced = (
        pflego.train(federation, model, method, rounds=1, slice_size=size, progress=False) for size in sizes
    )
    assert sliced.plan.streaming == whole.plan.streaming
