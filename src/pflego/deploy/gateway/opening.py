"""A gateway from settings: what it serves is looked at first, and it is closed when the run is over."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from flwr.serverapp import Grid

from pflego.after.kit.spec import FORMAT, all_settings
from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.gateway import tokens
from pflego.deploy.gateway.door import Door, House
from pflego.deploy.gateway.grid import JointGrid
from pflego.deploy.gateway.lobby import Lobby
from pflego.deploy.gateway.settings import Gateway
from pflego.errors import FolderError, SettingError

log = logging.getLogger("flwr.pflego")

PAGE = Path(__file__).parent / "page"
RUNTIME = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "blake2.js",
)  # of onnxruntime-web and @noble/hashes, put there by `make web`
_GOODBYE = 1.0  # seconds in which tabs hear that a run is finished
_OF_A_KIT = (".json", ".onnx")
_SHOWN = (".html", ".css", ".js", ".mjs", ".svg", ".wasm")


@dataclass(frozen=True)
class Opened:
    """A gateway that is open."""

    grid: Grid  # of everybody
    lobby: Lobby
    address: str


@contextmanager
def opened(
    config: AppConfig, run_config: Mapping[str, object], flower: Grid | None = None
) -> Iterator[Opened]:
    """Open the gateway that a deployment asks for, to visitors alone or beside Flower's sites; close it afterwards.

    run_config: as the app has it.
    """
    settings = config.deployment.gateway
    house = furnished(config, run_config)
    try:
        door = Door((settings.host, settings.port), house)
    except OSError as error:
        raise SettingError(
            f"the gateway cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}"
        ) from error
    thread = Thread(target=door.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{door.server_address[1]}/"
    log.info("clients in browsers come in at %s", address)
    try:
        yield Opened(JointGrid(house.lobby, house.tokens, flower), house.lobby, address)
    finally:
        house.lobby.finish()
        time.sleep(_GOODBYE)
        door.shutdown()
        door.server_close()
        thread.join()


def furnished(config: AppConfig, run_config: Mapping[str, object]) -> House:
    """Look at all that a gateway serves, and refuse what it cannot."""
    settings = config.deployment.gateway
    for name, wanted in (
        ("privacy", config.assignment.privacy),
        ("compression", config.assignment.compression),
        ("secure", config.deployment.secure.on or None),
    ):
        if wanted is not None:
            raise SettingError(
                f"{name} takes full clients, and a gateway lets in others: leave out one of both"
            )
    if absent := [name for name in RUNTIME if not (PAGE / "runtime" / name).is_file()]:
        raise FolderError(
            f"what the page runs on is not here ({absent[0]}): in a clone of the repository, with npm, `make web` "
            "installs it"
        )
    file = Path(settings.tokens).expanduser()
    tokens.read(file)
    spec, kit = _kit(settings)
    agreed = _agreed(config, spec)
    asked = {name: value for name, value in run_config.items() if _plain(name) in agreed}
    page = {
        f"/{path.relative_to(PAGE).as_posix()}": path for path in PAGE.rglob("*") if path.suffix in _SHOWN
    }
    return House(
        Lobby(settings.silence), file, asked, {**page, "/": PAGE / "index.html"}, kit, settings.limit
    )


def _kit(settings: Gateway) -> tuple[Mapping[str, object], dict[str, Path]]:
    """Read what a kit says, and list its files by path of the URL."""
    folder = Path(settings.kit).expanduser()
    try:
        spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
        if spec["format"] != FORMAT:
            raise FolderError(f"the kit in {folder} is of another version: make it again with pflego kit")
        names = ["spec.json", *(Path(one["name"]).name for one in spec["files"].values())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FolderError):
            raise
        raise FolderError(
            f"{folder} holds no kit that can be read: pflego kit APP --out {folder} --shape ... makes one"
        ) from error
    for name in names:
        if Path(name).suffix not in _OF_A_KIT or not (folder / name).is_file():
            raise FolderError(f"the kit in {folder} has no file {name}: make it again with pflego kit")
    return spec, {f"/kit/{name}": folder / name for name in names}


def _agreed(config: AppConfig, spec: Mapping[str, object]) -> Mapping[str, object]:
    """Refuse a kit that was made for another method, model or setting than the run's; give its settings."""
    agreed, inputs, method, backbone = (
        _table(spec, name) for name in ("settings", "inputs", "method", "backbone")
    )
    if not isinstance(shape := inputs.get("shape"), list):
        raise _damaged()
    if method.get("name") != "pflego":
        raise SettingError(
            f"clients in browsers play pflego, and not {method.get('name')}: leave out the gateway"
        )
    model = config.model(tuple(shape))
    ours = all_settings(model, config.algorithm, config.seed, config.assignment.streaming)
    for name, value in json.loads(json.dumps(ours)).items():
        if agreed.get(name) != value:
            raise SettingError(
                f"the kit was made for {name} = {agreed.get(name)!r}, and the run has {value!r}: make it again"
            )
    if backbone.get("base", "") != model.base:
        raise SettingError("the frozen weights of the kit are not those of the run: make it again")
    return agreed


def _table(spec: Mapping[str, object], name: str) -> Mapping[str, object]:
    if not isinstance(found := spec.get(name), dict):
        raise _damaged()
    return found


def _damaged() -> FolderError:
    return FolderError("the kit's spec.json is damaged: make it again with pflego kit")


def _plain(name: str) -> str:
    """Give a setting's name without its table."""
    known = {"model.name": "model", "model.seed": "model_seed", "method.name": "algorithm"}
    spelled = name.replace("-", "_")
    for table in ("method.", "model.", "run."):
        spelled = known.get(spelled, spelled).removeprefix(table)
    return spelled
