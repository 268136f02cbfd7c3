from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pflego
from pflego.trackers import MLflow, TrackerWarning
from tests.support.extras import later
from tests.support.tracked import EVALUATED, ROUNDS, interrupted, train

later("mlflow", reason="mlflow is not installed: pip install 'pflego[mlflow]'")

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

pytestmark = [
    # SQLAlchemy's own warning about MLflow's tables
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:sqlalchemy.exc.SADeprecationWarning")
]


EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"


@pytest.fixture(scope="module", autouse=True)
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, pflego.Run]]:
    """A run whose log is in its own folder. Nothing is sent anywhere, whatever the environment says."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv(EXPERIMENT, raising=False)
        yield folder, train(folder, MLflow())


@pytest.fixture
def store(finished: tuple[Path, pflego.Run]) -> str:
    """An address that takes no time to set up."""
    return f"sqlite:///{finished[0] / 'mlflow' / 'mlflow.db'}"


def read(store: str, experiment: str = "pflego") -> tuple[MlflowClient, list[Run]]:
    from mlflow import MlflowClient

    client = MlflowClient(store)
    known = client.get_experiment_by_name(experiment)
    assert known is not None
    return client, client.search_runs([known.experiment_id])


def steps(client: MlflowClient, run: Run, key: str) -> list[int]:
    return sorted(point.step for point in client.get_metric_history(run.info.run_id, key))


def test_a_run_has_its_figures_settings_and_end(finished: tuple[Path, pflego.Run], store: str) -> None:
    _, run = finished
    client, [logged] = read(store)
    assert logged.info.status == "FINISHED"
    assert logged.info.run_name == "a"
    assert logged.data.params["algorithm"] == "pflego"
    assert logged.data.params["steps"] == "3"
    assert "record" not in logged.data.params
    assert steps(client, logged, "loss") == list(range(1, ROUNDS + 1))
    assert steps(client, logged, "everyone_accuracy") == EVALUATED
    assert logged.data.metrics["loss"] == run.history[-1]["loss"]
    assert steps(client, logged, "final/worst_tenth") == [ROUNDS]
    assert logged.data.metrics["final/everyone"] == run.history[-1]["everyone_accuracy"]


def test_a_resumed_run_goes_on_in_the_same_run_with_every_round_once(tmp_path: Path, store: str) -> None:
    def tracker() -> MLflow:
        return MLflow(uri=store, experiment="resumed")

    interrupted(tmp_path, tracker(), tracker())
    client, [logged] = read(store, "resumed")
    assert logged.info.status == "FINISHED"
    assert steps(client, logged, "loss") == list(range(1, ROUNDS + 1))
    train(tmp_path, tracker(), rounds=ROUNDS + 1, resume=True)
    client, [logged] = read(store, "resumed")
    assert steps(client, logged, "loss") == list(range(1, ROUNDS + 2))
    assert steps(client, logged, "final/everyone") == [ROUNDS, ROUNDS + 1]


def test_two_runs_with_a_log_in_one_place_are_two(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv(EXPERIMENT, "two")
    for _ in range(2):
        train(None, MLflow(tmp_path), rounds=2)
    client, logged = read(store, "two")
    assert [steps(client, one, "loss") for one in logged] == [[1, 2], [1, 2]]


def test_a_run_does_not_go_on_in_the_log_of_another(tmp_path: Path, store: str) -> None:
    def tracker() -> MLflow:
        return MLflow(tmp_path / "logs", uri=store, experiment="shared place")

    train(tmp_path / "a", tracker(), rounds=3)
    train(tmp_path / "b", tracker(), rounds=3)
    train(tmp_path / "b", tracker(), rounds=4, resume=True)
    train(tmp_path / "a", tracker(), rounds=5, resume=True)
    client, logged = read(store, "shared place")
    assert {one.info.run_name for one in logged} == {"a", "b"}
    assert sorted(steps(client, one, "loss")[-1] for one in logged) == [3, 4, 5]


def test_a_server_that_is_gone_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # the port where nobody listens
    with pytest.warns(TrackerWarning, match="mlflow log has failed") as said:
        run = train(tmp_path, MLflow())
    assert len(said) == 1
    assert len(run.history) == ROUNDS
