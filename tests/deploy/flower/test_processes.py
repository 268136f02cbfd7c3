"""Real processes on loopback, behind the proxy, under TLS with node keys: nobody else gets in, and nothing is lost."""

from __future__ import annotations

import re
import shutil
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.runtime import RuntimeHttpClient

import pflego
from pflego.deploy.folder import write_app
from pflego.deploy.own_model import own_run
from pflego.files import read_tensors
from pflego.weights import Weights
from tests.deploy.flower.test_equality import assert_close
from tests.support.processes import NGINX, Machines, free_port, machines, until
from tests.support.sites import SHAPE, arrays, settle

SITES = ["clinic", "mill"]
ROUNDS = 6
LONG = 600.0  # seconds for what is done in ten on an idle machine


def kept(folder: Path, name: str) -> tuple[Weights, int]:
    """A site's state, and the round that it is of; round 0 before the first."""
    files = list((folder / name / "state").glob("*.safetensors"))
    if not files:
        return {}, 0
    tensors, facts = read_tensors(files[0])
    state = {key.removeprefix("after/"): t for key, t in tensors.items() if key.startswith("after/")}
    return state, facts.whole("round", least=1)


def learned(folder: Path) -> Weights:
    """The shared weights of the server's last checkpoint."""
    tensors, _ = read_tensors(folder / "out" / "checkpoint" / "server.safetensors")
    return {key.removeprefix("shared/"): t for key, t in tensors.items() if key.startswith("shared/")}


def rounds(folder: Path) -> int:
    """How many rounds the server has written down."""
    file = folder / "out" / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def waits(folder: Path) -> bool:
    """Tell whether the first site is a round ahead of the server, and the server stays where it is."""
    before = rounds(folder)
    time.sleep(2)
    return kept(folder, SITES[0])[1] == rounds(folder) + 1 == before + 1


def runs(hub: Machines) -> list[str]:
    """What Flower says of its runs, the newest first."""
    return re.findall(r"\b(?:pending|starting|running|finished:\w+)\b", hub.flwr("list", "hub"))


def begin_again(hub: Machines, name: str, start: Callable[[], None]) -> None:
    """Start a site until the server takes it: as long as it counts the one that was killed as alive, it does not."""

    def accepted() -> bool:
        if "SuperNode ID" in hub.log(name)[before:]:
            return True
        if not hub.alive(name):
            start()
        return False

    before = len(hub.log(name))
    start()
    until(f"{name} is back", accepted, seconds=LONG)


def is_refused(address: str, authority: bytes | None) -> bool:
    """Ask for a task, as a worker does; tell whether none is given."""
    client = RuntimeHttpClient.from_server_address(address, authority is None, authority, [])
    try:
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp", "flwr-clientapp"]))
    except (httpx.HTTPError, RuntimeError):
        return True
    finally:
        client.close()
    return False


def play_the_stranger(hub: Machines, evil: Path, site_port: int) -> None:
    """Try all that somebody without a key can, at the door; none of it may work. At the SuperLink it would."""
    home, authority = hub.folder / "outside", hub.folder / "certs" / "ca.crt"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.hub]\naddress = "127.0.0.1:{hub.door}"\nroot-certificates = "{authority}"\n'
    )
    hub.new_key("stranger")
    key = hub.folder / "keys" / "stranger.pub"
    for words in (("supernode", "register", key, "hub"), ("run", evil, "hub"), ("supernode", "list", "hub")):
        status, told = hub.try_flwr(*words, home=home)
        assert status != 0, told
    assert is_refused(f"127.0.0.1:{hub.door}", authority.read_bytes())
    assert not is_refused(f"127.0.0.1:{hub.port}", authority.read_bytes())  # what the proxy is for
    assert is_refused(f"127.0.0.1:{site_port}", None)  # a site's own port, without its worker's secret
    control = "/v1/control/list-nodes"
    unsigned = bytes(1 << 20)  # more than nginx keeps in memory
    with outside(hub, hub.port) as superlink:
        assert superlink.post(control).status_code != 404
        refusal = superlink.post("/v1/fleet/push-object", content=unsigned)
    ways = [control, "/v1/fleet/../control/list-nodes", "/v1/fleet/%2e%2e/control/list-nodes", f"/{control}"]
    ways += ["/v1/fleet/..%2fcontrol%2flist-nodes", "/v1/runtime/acquire-task", "/v1/fleet/", "/docs", "/"]
    with outside(hub, hub.door) as door:
        for way in ways:
            assert door.post(way).status_code in (400, 404), way
        assert door.get("/v1/fleet/pull-messages").status_code == 403
        assert door.post("/v1/fleet/pull-messages", content=b"").status_code not in (
            200,
            403,
            404,
        )  # no signature
        passed_on = door.post("/v1/fleet/push-object", content=unsigned)
        assert (passed_on.status_code, passed_on.content) == (refusal.status_code, refusal.content)
        assert door.post("/v1/fleet/push-object", content=bytes(33 << 20)).status_code == 413


def outside(hub: Machines, port: int) -> httpx.Client:
    trusted = ssl.create_default_context(cafile=hub.folder / "certs" / "ca.crt")
    return httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted)


def evil_app(folder: Path, app: Path, marker: Path) -> Path:
    """An app with the settings that sites have accepted, and a program of its own for them."""
    shutil.copytree(app, folder)
    file = folder / "federation" / "client_app.py"
    file.write_text(f"from pathlib import Path\n\nPath({str(marker)!r}).touch()\n{file.read_text()}")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not NGINX.exists(), reason="nginx is not installed (Debian: nginx-light)")
def test_a_federation_lets_nobody_in_and_survives_the_death_of_a_site_and_of_its_server(
    tmp_path: Path,
) -> None:
    configs = settle(tmp_path, SITES)
    app = {
        "steps": 10, "rounds": ROUNDS, "seed": 5, "evaluate_every": 0, "device": "cpu", "out": str(tmp_path / "out"),
        "members": ", ".join(SITES), "wait": LONG, "reply-timeout": LONG, "patience": 1,
    }  # fmt: skip
    trial = tmp_path / "trial"
    write_app(trial, app)
    marker = tmp_path / "marker"
    evil = evil_app(tmp_path / "evil", trial, marker)
    ports = {name: free_port() for name in SITES}

    with machines(tmp_path) as hub:

        def start(name: str) -> None:
            hub.start_site(name, trial, configs[name], ports[name])

        hub.start_server(trial)
        hub.start_proxy(trial)
        for name in SITES:
            hub.register(name)
            start(name)
        until("round 1 is done", lambda: rounds(tmp_path) >= 1, seconds=LONG)

        hub.kill("mill")  # with SIGKILL, wherever it was
        head, _ = kept(tmp_path, "mill")
        until(
            "the server waits for it, and the other has done the round", lambda: waits(tmp_path), seconds=LONG
        )
        done = rounds(tmp_path)
        hub.kill("server")  # with SIGKILL, before the checkpoint of this round
        assert rounds(tmp_path) == done < ROUNDS
        begun = hub.log("server").count("Started task")
        hub.start_server(trial)  # the same command again: it goes on with this round by itself
        until("it has begun", lambda: hub.log("server").count("Started task") > begun, seconds=LONG)

        play_the_stranger(hub, evil, ports["clinic"])
        hub.start_site("stranger", trial, {**configs["mill"], "state": tmp_path / "stranger"})
        hub.start_site_in_the_clear("plain")
        assert hub.ended_with("stranger", seconds=LONG) != 0
        assert hub.ended_with("plain", seconds=LONG) != 0
        for name in ("stranger", "plain"):
            assert "SuperNode ID" not in hub.log(name)
            assert "Failed to initialize the connection" in hub.log(name)
        assert_close(kept(tmp_path, "mill")[0], head)  # nobody has touched it since

        begin_again(hub, "mill", lambda: start("mill"))
        until("the last round is done", lambda: rounds(tmp_path) == ROUNDS, seconds=LONG)
        until("the run is finished", lambda: "finished:completed" in runs(hub), seconds=LONG, every=1)

        hub.flwr("run", evil, "hub", "-c", f'out="{tmp_path / "evil-out"}"')  # whoever owns the server
        until("it was refused", lambda: runs(hub)[0].startswith("finished"), seconds=LONG, every=1)
        assert runs(hub)[0] == "finished:failed"
        assert "takes part in 1 runs" in hub.log("clinic")
        assert not marker.exists()
        for name in SITES:
            assert kept(tmp_path, name)[1] == ROUNDS

    whole = pflego.train(
        pflego.Federation([pflego.Client(name, **arrays(i)) for i, name in enumerate(SITES)]),
        pflego.models.build("mlp", SHAPE, seed=5),
        pflego.PFLEGO(steps=10),
        rounds=ROUNDS,
        seed=5,
        evaluate_every=0,
        device="cpu",
    )
    assert_close(learned(tmp_path), whole.shared)
    for name in SITES:
        state, last = kept(tmp_path, name)
        assert last == ROUNDS
        assert_close(state, whole.states[name])
        config = " ".join(f'{key}="{value}"' for key, value in configs[name].items())
        model = own_run(trial, config).personal_model(name)  # what the site uses from now on
        assert_close(dict(model.named_parameters()), dict(whole.personal_model(name).named_parameters()))
