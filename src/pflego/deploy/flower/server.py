"""The ServerApp: the round loop of `train`, with clients at their own sites."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.engine import FlowerEngine
from pflego.deploy.flower.gathering import gather
from pflego.deploy.flower.roll import Roll
from pflego.errors import UserError
from pflego.federation.members import Members
from pflego.runs.folder import RunFolder
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.settings.experiment import Experiment
from pflego.training.callbacks import Callback

_POLL = 0.5  # seconds between two looks at what has arrived
_LOCK = 30.0  # seconds that a killed server's process may take to end

log = logging.getLogger("flwr.pflego")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or go on training: the run's folder says which."""
    serve(grid, AppConfig.read(context.run_config))


def serve(grid: Grid, config: AppConfig, *, poll: float = _POLL) -> Run:
    """Settle who takes part, then train. A folder that holds a run already is gone on with."""
    with RunFolder(config.out).held(wait=_LOCK):
        roll, members = Roll(grid), Members.load(config.out)
        if members is None:
            members = gather(roll, config.deployment, poll=poll)
            members.save(config.out)
        elif (wanted := set(config.deployment.names)) and wanted != {str(m.id) for m in members.clients}:
            raise UserError(f"the run in {config.out} is of other clients than {', '.join(sorted(wanted))}")
        federation, model = members.federation(), config.model(members.shape)
        engine = FlowerEngine(
            grid,
            roll,
            members,
            model,
            config.algorithm,
            config.seed,
            deployment=config.deployment,
            poll=poll,
            compression=config.assignment.compression,
        )
        engine.assemble()
        experiment = Experiment(config.settings, federation, model, config.algorithm)
        return experiment.train(resume=True, engine=lambda *_: engine, callbacks=[_Log()], progress=False)


class _Log(Callback):
    """One line per round, for `flwr log`."""

    def on_start(self, run: Run) -> None:
        done = len(run.history)
        log.info("%s, %d clients; %d rounds are done", run.algorithm.name, len(run.federation), done)

    def on_round(self, run: Run, row: HistoryRow) -> None:
        figures = ", ".join(f"{key} {value:.4g}" for key, value in row.items() if value is not None)
        log.info("%s", figures)
