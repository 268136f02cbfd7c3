"""The ServerApp: the round loop of `train`, with clients at their own sites."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pflego.callbacks import Callback
from pflego.checkpoint import RunFolder
from pflego.engines.flower.engine import FlowerEngine
from pflego.engines.flower.members import Members, gather
from pflego.engines.flower.roll import Roll
from pflego.engines.flower.settings import Plan
from pflego.errors import UserError
from pflego.experiment import Experiment
from pflego.history import HistoryRow
from pflego.run import Run

_POLL = 1.0  # seconds between two looks at what has arrived
_LOCK = 30.0  # seconds that a killed server's process may take to end

log = logging.getLogger("flwr.pflego")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or go on training: the run's folder says which."""
    serve(grid, Plan.read(context.run_config))


def serve(grid: Grid, plan: Plan, *, poll: float = _POLL) -> Run:
    """Settle who takes part, then train. A folder that holds a run already is gone on with."""
    with RunFolder(plan.out).held(wait=_LOCK):
        roll, members = Roll(grid), Members.load(plan.out)
        if members is None:
            members = gather(roll, plan.deployment, poll=poll)
            members.save(plan.out)
        elif (wanted := set(plan.deployment.names)) and wanted != {str(m.id) for m in members.clients}:
            raise UserError(f"the run in {plan.out} is of other clients than {', '.join(sorted(wanted))}")
        federation, model = members.federation(), plan.model(members.shape)
        engine = FlowerEngine(
            grid, roll, members, model, plan.algorithm, plan.seed, deployment=plan.deployment, poll=poll
        )
        engine.assemble()
        experiment = Experiment(plan.settings, federation, model, plan.algorithm)
        return experiment.train(resume=True, engine=lambda *_: engine, callbacks=[_Log()], progress=False)


class _Log(Callback):
    """A line a round, for `flwr log`."""

    def on_start(self, run: Run) -> None:
        done = len(run.history)
        log.info("%s, %d clients; %d rounds are done", run.algorithm.name, len(run.federation), done)

    def on_round(self, run: Run, row: HistoryRow) -> None:
        figures = ", ".join(f"{key} {value:.4g}" for key, value in row.items() if value is not None)
        log.info("%s", figures)
