"""A site's own model: the shared weights that it was last evaluated with, and the state that never left it."""

from __future__ import annotations

from pathlib import Path

from pflego.deploy.flower.desk import Desk
from pflego.deploy.flower.keep import StateFile, last_noted
from pflego.deploy.reading import read
from pflego.errors import FolderError
from pflego.runs.record import Tables
from pflego.runs.run import Run
from pflego.settings.open_run import plan_of
from pflego.weights import to


def own_run(app: Path, node_config: str) -> Run:
    """Give what a site has of its last run, as a run with one client: for its model, predictions, evaluation."""
    config, site = read(app, node_config)
    client, schema = site.data_and_schema()
    noted = last_noted(site.state, client.id)
    if noted is None:
        raise FolderError(
            f"{site.state} has no shared weights for client {client.id!r} yet: they come with every evaluation of "
            f"everyone, as evaluate_every says, and after the last round"
        )
    shared, round_number, common = noted
    desk = Desk.of(site.at_home(config.assignment), client, common, schema, device=site.device)
    first = desk.shared()
    if {n: t.shape for n, t in shared.items()} != {n: t.shape for n, t in first.items()}:
        raise FolderError(
            f"{site.state} holds the weights of another model than {app} has: take the app they were trained with"
        )
    kept = StateFile(site.state, common.run, client.id).as_of(round_number)
    state = desk.first() if kept is None else kept
    tables: Tables = {**config.settings.tables, "data": {"name": site.data}}
    return Run(
        problems=desk.problems,
        algorithm=config.algorithm,
        plan=plan_of(tables),
        shared=to(shared, desk.problems.device),
        states={client.id: state},
        settings=tables,
        engine=desk.engine(state),
        history=[{"round": number} for number in range(1, round_number + 1)],
    )
