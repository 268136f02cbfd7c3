"""A client that comes later: what it gets, and that training with it is exact and survives interruptions."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.after.joining import enlarged
from pflego.algorithms.registry import methods
from pflego.federation.draws import cohort, expected
from pflego.federation.participation import participation_of
from pflego.federation.remote import NotHereError, RemoteFederation
from pflego.learning.theory import head_smoothness
from pflego.runs.history import HistoryRow
from pflego.runs.record import as_toml
from pflego.runs.run import Run
from tests.support.cases import often
from tests.support.reference import (
    F64,
    Net,
    World,
    assert_identical,
    assert_same_weights,
    distance,
    gradients,
    loss,
    world,
)
from tests.support.rivals import of_kind

ALGORITHM = pflego.PFLEGO(steps=4, head_init="uniform")


def some(twin: World, clients: int = 4) -> pflego.Federation:
    """The first clients of the world; the others may come later."""
    return pflego.Federation(list(twin.federation)[:clients])


def train(
    twin: World,
    federation: pflego.Federation,
    out: Path | None,
    *,
    rounds: int,
    algorithm: pflego.Algorithm = ALGORITHM,
    **options: object,
) -> Run:
    settings: dict[str, object] = {"participation": 2, "seed": 5, "evaluate_every": 2, **options}
    return pflego.train(federation, twin.model, algorithm, rounds=rounds, out=out, **settings)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_newcomer_gets_a_head_and_nothing_else_moves() -> None:
    twin = world()
    run = train(twin, some(twin), None, rounds=3)
    before = {
        client_id: {name: w.clone() for name, w in state.items()} for client_id, state in run.states.items()
    }
    joined = run.join(twin.federation.client("c4"))
    assert joined.client == "c4"
    assert list(joined.run.federation.ids) == ["c0", "c1", "c2", "c3", "c4"]
    assert len(run.federation) == 4
    assert joined.run.history == run.history
    assert_same_weights(joined.run.shared, run.shared)
    for client_id, state in before.items():
        assert_same_weights(joined.run.states[client_id], state)
    client = twin.federation.client("c4")
    assert joined.run.states["c4"]["head"].shape == (len(client.classes), 5)
    assert joined.run.evaluate()[4]["accuracy"] == joined.score.value(twin.federation.task)


def test_so_many_steps_are_so_many_steps_of_gradient_descent() -> None:
    twin = world()
    run = train(twin, some(twin), None, rounds=2)
    joined = run.join(twin.federation.client("c4"), steps=7, alone=0)
    net = Net(run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy())
    site = twin.sites[4]
    rate = 1 / head_smoothness(torch.from_numpy(net.phi(site.x)), twin.federation.task)
    head: F64 = run.algorithm.init_state(joined.run.problems[4], 5)["head"].numpy()
    for _ in range(7):
        head = head - rate * gradients(net, head, site)[2]
    assert distance(joined.run.states["c4"]["head"], head) < 1e-10
    assert joined.alone is None


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_without_a_number_steps_go_on_until_the_loss_is_at_its_lowest(decay: float) -> None:
    twin = world()
    run = train(twin, some(twin), None, rounds=2, algorithm=pflego.PFLEGO(steps=4, head_decay=decay))
    head = run.join(twin.federation.client("c4"), alone=0).run.states["c4"]["head"].numpy()
    net, site = Net(run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy()), twin.sites[4]

    def objective(w: F64) -> float:
        return loss(net, w, site) + decay / 2 * float((w**2).sum())

    rate = 1 / (head_smoothness(torch.from_numpy(net.phi(site.x)), twin.federation.task) + decay)
    best: F64 = np.zeros_like(head)
    ahead = best
    for step in range(5_000):  # Nesterov's way, which is quicker
        after = ahead - rate * (gradients(net, ahead, site)[2] + decay * ahead)
        ahead, best = after + step / (step + 3) * (after - best), after
    assert objective(head) < objective(best) + 0.01 * (objective(np.zeros_like(head)) - objective(best))


@pytest.mark.parametrize("participation", ["everyone", "2"])
def test_rounds_with_the_newcomer_are_those_of_algorithm_1_on_all_clients(
    tmp_path: Path, participation: str
) -> None:
    """From the checkpoint on, in NumPy: five clients, with the alphas of five."""
    twin = world()
    algorithm = pflego.PFLEGO(
        steps=3, client_lr=0.2, server_lr=0.1, server_optimizer="sgd", head_step="exact"
    )
    options = {"algorithm": algorithm, "participation": participation_of(participation)}
    run = train(twin, some(twin), tmp_path, rounds=4, **options)  # type: ignore[arg-type]
    joined = run.join(twin.federation.client("c4"), steps=5, alone=0)
    resumed = train(twin, joined.run.federation, tmp_path, rounds=9, resume=True, **options)  # type: ignore[arg-type]

    net = Net(run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy())
    heads: list[F64] = [joined.run.states[f"c{i}"]["head"].numpy() for i in range(5)]
    process = participation_of(participation)
    scale = 5 / expected(process, range(5))
    for number in range(5, 10):
        chosen = cohort(process, range(5), seed=5, number=number)
        step_v, step_bias = np.zeros_like(net.V), np.zeros_like(net.v)
        for i in chosen:
            for _ in range(2):
                heads[i] = heads[i] - 0.2 * gradients(net, heads[i], twin.sites[i])[2]
            dv, dbias, dw = gradients(net, heads[i], twin.sites[i])
            alpha = twin.alphas[i]
            step_v, step_bias = step_v + 0.1 * scale * alpha * dv, step_bias + 0.1 * scale * alpha * dbias
            heads[i] = heads[i] - 0.1 * scale * alpha * dw
        net = Net(net.V - step_v, net.v - step_bias)
    assert distance(resumed.shared["0.weight"], net.V) < 1e-10
    assert distance(resumed.shared["0.bias"], net.v) < 1e-10
    for i in range(5):
        assert distance(resumed.states[f"c{i}"]["head"], heads[i]) < 1e-10


class StopAfter(pflego.Callback):
    def __init__(self, number: int) -> None:
        self.number = number

    def on_round(self, run: Run, row: HistoryRow) -> None:
        if row["round"] == self.number:
            raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_run_interrupted_after_somebody_joined_goes_on_exactly(tmp_path: Path, where: str) -> None:
    twin = world(dtype=torch.float32)
    ends = []
    for name, stops in [("whole", []), ("a", [5, 7, 8])]:
        out = tmp_path / name
        run = train(twin, some(twin), out, rounds=4, states=where)
        federation = run.join(twin.federation.client("c4")).run.federation
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                train(
                    twin, federation, out, rounds=10, states=where, resume=True, checkpoint_every=2,
                    callbacks=[StopAfter(stop)],
                )  # fmt: skip
        ends.append(train(twin, federation, out, rounds=10, states=where, resume=True))
    assert_identical(*ends)
    assert ends[0].evaluations == ends[1].evaluations


def test_what_was_before_stays_as_it_was(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    run = train(twin, some(twin), tmp_path, rounds=4)
    before = contents(tmp_path)
    joined = run.join(twin.federation.client("c4"))
    after = contents(tmp_path)
    changed = {path for path in after if after[path] != before.get(path)}
    own = Path("checkpoint/states/00000004+0.safetensors")
    assert changed == {Path("settings.toml"), own}
    assert after.keys() == before.keys() | {own}
    opened = pflego.open_run(
        tmp_path, federation=joined.run.federation, model=twin.model, algorithm=ALGORITHM
    )
    assert_identical(opened, joined.run)
    assert as_toml(opened.settings) == as_toml(joined.run.settings)
    assert opened.evaluations == {number: [*figures, None] for number, figures in run.evaluations.items()}


def test_who_took_part_is_known_on_both_sides_of_a_joining(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    run = train(twin, some(twin, 3), tmp_path, rounds=4)
    joined = run.join(twin.federation.client("c3"))
    later = train(twin, joined.run.federation, tmp_path, rounds=8, resume=True)
    joined = later.join(twin.federation.client("c4"))
    last = train(twin, joined.run.federation, tmp_path, rounds=20, resume=True)
    asked = [last.participants(number) for number in range(1, 21)]
    assert asked[:4] == [run.participants(number) for number in range(1, 5)]
    assert asked[4:8] == [later.participants(number) for number in range(5, 9)]
    assert {client_id for ids in asked[:4] for client_id in ids} <= {"c0", "c1", "c2"}
    assert "c3" in {client_id for ids in asked[4:8] for client_id in ids}
    assert "c4" in {client_id for ids in asked[8:] for client_id in ids}
    assert [len(figures) for figures in last.evaluations.values()] == [5] * 10
    fresh = train(twin, some(twin, 3), None, rounds=8)
    assert last.history[:4] != fresh.history[:4]  # but for the seconds they are the same
    assert [row["loss"] for row in last.history[:4]] == [row["loss"] for row in fresh.history[:4]]


@pytest.mark.parametrize("writes", [0, 1])
def test_a_joining_killed_between_its_files_leaves_the_old_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """The clients' states are replaced first, then the settings: what comes after the kill never happens."""
    twin = world(dtype=torch.float32)
    old, client = some(twin), twin.federation.client("c4")
    run = train(twin, old, tmp_path / "a", rounds=4)
    never = train(twin, old, tmp_path / "never", rounds=8)
    left = writes
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run.join(client)
    opened = pflego.open_run(tmp_path / "a", federation=old, model=twin.model, algorithm=ALGORITHM)
    assert_identical(opened, run)
    joined = opened.join(client, out=tmp_path / "b")  # the second attempt
    assert_identical(joined.run, run.join(client, out=tmp_path / "c").run)
    assert_identical(train(twin, old, tmp_path / "a", rounds=8, resume=True), never)


def test_another_folder_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    run = train(twin, some(twin), tmp_path / "a", rounds=4)
    before = contents(tmp_path / "a")
    joined = run.join(twin.federation.client("c4"), out=tmp_path / "new" / "b")
    assert contents(tmp_path / "a") == before
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["b"]
    settings = tomllib.loads((tmp_path / "new/b/settings.toml").read_text())
    assert settings["data"]["joined"][0]["client"] == "c4"
    assert settings["record"]["joined_after"] == [4]
    train(twin, joined.run.federation, tmp_path / "new/b", rounds=6, resume=True)
    train(twin, some(twin), tmp_path / "a", rounds=6, resume=True)
    with pytest.raises(pflego.FolderError, match="exists already"):
        run.join(twin.federation.client("c4"), out=tmp_path / "a")


METHODS: list[pflego.Algorithm] = [
    *(of_kind(kind, steps=6) for kind in methods().values()),
    pflego.PFLEGO(steps=6, common_head=True),
    pflego.PFLEGO(head_optimizer="solve"),
    pflego.PFLEGO(steps=6, passes=2),
    pflego.PFLEGO(steps=6, batch_size=4, common_head=True),
    pflego.PFLEGO(steps=6, server_lr="auto", server_optimizer="sgd"),
    pflego.FedAvg(steps=6, labels="global"),
    pflego.FedBabu(steps=6, fine_tune=3),
    pflego.FedRecon(steps=6, reset=True),
]


@pytest.mark.parametrize("algorithm", often(METHODS), ids=str)
def test_everybody_can_join_whatever_the_method(tmp_path: Path, algorithm: pflego.Algorithm) -> None:
    twin = world(dtype=torch.float32, clients=6)
    late = twin.federation.client("c5")  # its classes are among those of the others
    run = train(twin, some(twin, 5), tmp_path, rounds=3, algorithm=algorithm)
    joined = run.join(late)
    model = joined.run.personal_model("c5")
    predicted = model.predict(late.x_test)
    assert set(predicted.tolist()) <= {*late.classes.tolist(), *run.federation.classes, -1}  # type: ignore[misc]
    resumed = train(twin, joined.run.federation, tmp_path, rounds=8, algorithm=algorithm, resume=True)
    assert len(resumed.evaluate()) == 6
    assert "c5" in {client_id for number in range(4, 9) for client_id in resumed.participants(number)}
    assert (joined.untrained is None) == (joined.run.states["c5"] == {})
    assert (joined.alone is None) == (algorithm.name == "local")


@pytest.mark.parametrize("method", often(methods(), "pflego"))
def test_a_newcomers_model_has_learned_something(method: str) -> None:
    """Two digits each: a shared model must beat a guess among ten, one with a head of the client's own by far."""
    federation = pflego.load("digits", clients=8, classes_per_client=2, seed=2)
    *others, late = federation
    algorithm = of_kind(methods()[method], steps=10, client_lr=0.1)
    run = pflego.train(
        pflego.Federation(others),
        pflego.models.build("mlp", (64,)),
        algorithm,
        rounds=60 if method == "fedsgd" else 6,  # of one step each
        participation=4,
        seed=2,
    )
    joined = run.join(late, steps=100, alone=0)
    figure = joined.score.value(federation.task)
    assert figure is not None
    usual = 0.3 if algorithm.uses_shared_model else 0.9
    # a shift, or one step, is less than a head; and without batch norm FedBN is FedAvg
    assert figure > {"feddbe": 0.7, "moon": 0.3, "perfedavg": 0.3, "fedbn": 0.3}.get(method, usual)


def test_a_class_that_nobody_had_is_learned_by_a_personal_head() -> None:
    twin = world()
    run = train(twin, some(twin), None, rounds=2)
    client = twin.federation.client("c4")
    new = pflego.Client("new", client.x_train, client.y_train + 40)
    joined = run.join(new)
    assert set(joined.run.personal_model("new").predict(new.x_train).tolist()) <= set(new.classes.tolist())
    assert joined.run.federation.classes == [*(run.federation.classes or []), *new.classes.tolist()]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (pflego.PFLEGO(common_head=True), "classes that nobody had: 40, 41"),
        (pflego.FedAvg(labels="global"), "classes that nobody had: 40, 41"),
        (pflego.Ditto(labels="global"), "classes that nobody had: 40, 41"),
        (pflego.FedProto(), "classes that nobody had: 40, 41"),
        (pflego.FedPAC(), "classes that nobody had: 40, 41"),
    ],
    ids=str,
)
def test_a_shared_head_has_no_place_for_a_new_class(
    tmp_path: Path, algorithm: pflego.Algorithm, words: str
) -> None:
    twin = world()
    run = train(twin, some(twin), tmp_path, rounds=2, algorithm=algorithm)
    before = contents(tmp_path)
    x = twin.federation.client("c4").x_train
    with pytest.raises(pflego.UserError, match=words):
        run.join(pflego.Client("new", x, np.arange(len(x)) % 2 + 40))
    assert contents(tmp_path) == before


def test_a_shared_head_of_local_labels_takes_new_classes_but_no_more_of_them() -> None:
    twin = world()
    run = train(twin, some(twin), None, rounds=2, algorithm=pflego.FedAvg(steps=2, labels="local"))
    x = twin.federation.client("c4").x_train
    assert run.join(pflego.Client("new", x, np.arange(len(x)) % 4 + 40)).score.samples == 0
    with pytest.raises(pflego.UserError, match="has 5 classes, but fedavg shares a head of 4 outputs"):
        run.join(pflego.Client("new", x, np.arange(len(x)) % 5))


def test_in_a_regression_too() -> None:
    twin = world(regression=True)
    run = train(twin, some(twin), None, rounds=3)
    joined = run.join(twin.federation.client("c4"))
    assert joined.score.loss is not None
    assert joined.untrained is not None
    assert joined.untrained.loss is not None
    assert joined.score.loss < joined.untrained.loss


def refuse(run: Run, client: pflego.Client, words: str) -> None:
    with pytest.raises(pflego.UserError, match=words):
        run.join(client)


def test_who_does_not_fit_is_refused() -> None:
    twin = world()
    run = train(twin, some(twin), None, rounds=2)
    x, y = twin.federation.client("c4").x_train, twin.federation.client("c4").y_train
    refuse(run, pflego.Client("c0", x, y), "two clients are called 'c0'")
    refuse(run, pflego.Client("new", x[:, :3], y), r"differ in the shape of their inputs: \(6,\) and \(3,\)")
    refuse(run, pflego.Client("new", x, y.double()), "different tasks")
    with pytest.raises(pflego.UserError, match="steps must be a whole number above 0"):
        run.join(pflego.Client("new", x, y), steps=0)
    remote = RemoteFederation(["a"], sizes=[3], classes=[0, 1], outputs=2)
    with pytest.raises(NotHereError):
        enlarged(remote, pflego.Client("new", x, y))


def test_a_folder_that_has_gone_on_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    run = train(twin, some(twin), tmp_path, rounds=2)
    train(twin, some(twin), tmp_path, rounds=4, resume=True)
    before = contents(tmp_path)
    with pytest.raises(pflego.FolderError, match="has gone on since it was opened"):
        run.join(twin.federation.client("c4"))
    assert contents(tmp_path) == before
    now = pflego.open_run(tmp_path, federation=some(twin), model=twin.model, algorithm=ALGORITHM)
    now.join(twin.federation.client("c4"))
    with pytest.raises(pflego.FolderError, match="another federation by now"):
        now.join(twin.federation.client("c4"))


def test_the_federation_without_the_newcomer_is_refused_from_then_on(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    run = train(twin, some(twin), tmp_path, rounds=2)
    run.join(twin.federation.client("c4"))
    with pytest.raises(pflego.UserError, match=r"joined was .*c4.*, is now 'not set'"):
        train(twin, some(twin), tmp_path, rounds=4, resume=True)
    again = enlarged(some(twin), twin.federation.client("c4"))
    train(twin, again, tmp_path, rounds=4, resume=True)


def test_a_head_that_is_a_module_is_fitted_too() -> None:
    twin = world(dtype=torch.float32)

    def head(features: int, outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(features, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))

    model = pflego.Model(twin.model.backbone, 4, head=head)
    run = pflego.train(some(twin), model, pflego.PFLEGO(steps=3), rounds=2)
    joined = run.join(twin.federation.client("c4"), steps=300, alone=0)
    problem = joined.run.problems[4]
    before = problem.loss({**run.shared, **run.algorithm.init_state(problem, 0)})
    assert problem.loss({**run.shared, **joined.run.states["c4"]}) < 0.7 * before
