"""The ServerApp: the round loop of `train`, with clients at their own sites."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.desk import shapes
from pflego.deploy.flower.engine import FlowerEngine
from pflego.deploy.flower.gathering import begins, gather
from pflego.deploy.flower.membership import Membership
from pflego.deploy.flower.roll import Roll
from pflego.errors import UserError
from pflego.federation.members import Members
from pflego.federation.population import Population
from pflego.learning.model import Model
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
    config = AppConfig.read(context.run_config)
    if not config.deployment.gateway.port:
        serve(grid, config)
        return
    from pflego.deploy.gateway.opening import opened  # which others need not

    with opened(config, context.run_config, grid) as gateway:
        serve(gateway.grid, config)


def serve(grid: Grid, config: AppConfig, *, poll: float = _POLL) -> Run:
    """Settle who takes part, then train. A folder that holds a run already is gone on with."""
    with RunFolder(config.out).held(wait=_LOCK):
        roll, members, deployment = Roll(grid), Members.load(config.out), config.deployment
        if members is None:
            members = gather(roll, deployment, config.population, poll=poll)
            members.save(config.out)
        wanted = {name for name in deployment.names if begins(name, config.population)}
        if wanted and wanted != {str(member.id) for member in members.clients[: members.founders]}:
            raise UserError(f"the run in {config.out} is of other clients than {', '.join(sorted(wanted))}")
        model, algorithm, seed = config.model(members.shape), config.algorithm, config.seed
        population = config.population or Population()
        as_now = shapes(members, model, algorithm, seed)
        membership = Membership(
            config.out, members, roll, deployment, population,
            fits=lambda others: shapes(others, model, algorithm, seed) == as_now, poll=poll,
        )  # fmt: skip
        engine = _engine(grid, roll, membership, model, config, poll)
        engine.assemble()
        experiment = Experiment(config.settings, engine.federation, model, algorithm)
        return experiment.train(resume=True, engine=lambda *_: engine, callbacks=[_Log()], progress=False)


def _engine(
    grid: Grid, roll: Roll, membership: Membership, model: Model, config: AppConfig, poll: float
) -> FlowerEngine:
    """Give the engine that the deployment asks for."""
    parts = (grid, roll, membership, model, config.algorithm, config.seed, config.deployment)
    wanted = config.assignment
    private = wanted.privacy is not None
    if config.deployment.secure.on:
        from pflego.deploy.flower.secure.engine import SecureEngine

        return SecureEngine(
            *parts, private=private, poll=poll, folder=config.out / "sums", privacy=wanted.privacy
        )
    return FlowerEngine(*parts, private=private, poll=poll, compression=wanted.compression)


class _Log(Callback):
    """One line per round, for `flwr log`."""

    def on_start(self, run: Run) -> None:
        done = len(run.history)
        log.info("%s, %d clients; %d rounds are done", run.algorithm.name, len(run.federation), done)

    def on_round(self, run: Run, row: HistoryRow) -> None:
        figures = ", ".join(f"{key} {value:.4g}" for key, value in row.items() if value is not None)
        log.info("%s", figures)
