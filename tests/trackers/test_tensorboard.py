from __future__ import annotations

from pathlib import Path

import pytest

from pflego.trackers import TensorBoard
from tests.support.tracked import EVALUATED, ROUNDS, interrupted, train

pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'pflego[tensorboard]'")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2


def read(folder: Path) -> EventAccumulator:
    """All of the log, as TensorBoard would show it."""
    everything = {"scalars": 0, "histograms": 0}
    return EventAccumulator(str(folder), size_guidance=everything).Reload()


def steps(log: EventAccumulator, tag: str) -> list[int]:
    return [point.step for point in log.Scalars(tag)]


def test_every_figure_is_a_curve_and_the_clients_are_a_histogram(tmp_path: Path) -> None:
    run = train(None, TensorBoard(tmp_path))
    log = read(tmp_path)
    for key in run.history[0].keys() - {"round"}:
        assert steps(log, key) == list(range(1, ROUNDS + 1))
        values = [row[key] for row in run.history]
        assert [point.value for point in log.Scalars(key)] == pytest.approx(values, rel=1e-6)
    assert steps(log, "everyone_accuracy") == EVALUATED
    histograms = {event.step: event.histogram_value for event in log.Histograms("clients_accuracy")}
    assert list(histograms) == EVALUATED
    for number, histogram in histograms.items():
        figures = [figure for figure in run.evaluations[number] if figure is not None]
        assert histogram.num == len(figures) == 5
        assert (histogram.min, histogram.max) == (min(figures), max(figures))
        assert histogram.sum == pytest.approx(sum(figures))


def test_what_the_run_came_to_is_told_after_the_last_round(tmp_path: Path) -> None:
    run = train(None, TensorBoard(tmp_path))
    log = read(tmp_path)
    assert steps(log, "final/worst_tenth") == [ROUNDS]
    assert log.Scalars("final/everyone")[0].value == pytest.approx(run.history[-1]["everyone_accuracy"])
    assert log.Scalars("final/bytes_up")[0].value == sum(row["bytes_up"] or 0 for row in run.history)


def test_settings_are_hyperparameters_and_the_end_is_told(tmp_path: Path) -> None:
    train(None, TensorBoard(tmp_path))
    log = read(tmp_path)
    begin = plugin_data_pb2.HParamsPluginData.FromString(
        log.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    ).session_start_info.hparams
    assert begin["algorithm"].string_value == "pflego"
    assert begin["steps"].number_value == 3
    assert begin["client_lr"].string_value == "centred"
    assert begin["common_head"].bool_value is False
    assert "deadline" not in begin
    assert log.SummaryMetadata(metadata.SESSION_END_INFO_TAG)


def test_a_resumed_run_has_every_round_once(tmp_path: Path) -> None:
    run = interrupted(tmp_path, TensorBoard(), TensorBoard())
    log = read(tmp_path / "tensorboard")
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert steps(log, "loss") == list(range(1, ROUNDS + 1))
    assert [event.step for event in log.Histograms("clients_accuracy")] == EVALUATED
    losses = [row["loss"] for row in run.history]
    assert [point.value for point in log.Scalars("loss")] == pytest.approx(losses, rel=1e-6)
