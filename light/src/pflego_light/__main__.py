"""pflego-light: look at a kit with a client's data, or take part in a federation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from pflego_light.errors import LightError


def main() -> None:
    """Run the command line. What the user got wrong is one line and exit status 2."""
    try:
        _main(sys.argv[1:])
    except LightError as error:
        print(f"pflego-light: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\npflego-light: stopped", file=sys.stderr)
        sys.exit(130)


def _main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="pflego-light", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="read a kit, and try it on data")
    check.add_argument("kit", type=Path)
    check.add_argument(
        "--data", type=Path, required=True, help="a .npz file: x_train, y_train, x_test, y_test"
    )
    site = commands.add_parser("site", help="take part in a federation on Flower")
    site.add_argument("kit", type=Path)
    site.add_argument(
        "--node-config", required=True, help='\'client-id="ward-3" data="own.npz" state="state"\''
    )
    site.add_argument(
        "--superlink", required=True, help="the server's name and port: server.example.org:8443"
    )
    site.add_argument("--root-certificates", type=Path, required=True, help="ca.crt")
    site.add_argument("--key", type=Path, required=True, help="the site's private key")
    site.add_argument("--port", type=int, default=0, help="of the SuperNode, on this machine alone; 0: any")
    site.add_argument("--poll", type=float, default=0.5, help="seconds between two looks for messages")
    site.add_argument("--threads", type=int, default=1, help="that a graph may use")
    visit = commands.add_parser("visit", help="take part through a gateway, over HTTP and without Flower")
    visit.add_argument("kit", type=Path)
    visit.add_argument("--link", type=Path, required=True, help="a file that holds the link with the token")
    visit.add_argument("--data", type=Path, required=True, help="a .npz file")
    visit.add_argument(
        "--state", type=Path, default=Path("state"), help="folder for what only this client knows"
    )
    visit.add_argument("--threads", type=int, default=1, help="that a graph may use")
    given = vars(parser.parse_args(words))
    commanded: dict[str, Callable[..., None]] = {"check": _check, "site": _site, "visit": _visit}
    commanded[given.pop("command")](**given)


def _check(kit: Path, data: Path) -> None:
    """Play a round on zeros, as a federation of one."""
    import numpy as np

    from pflego_light import Client, Data, Federation, Kit, Round

    read, own = Kit.read(kit), Data.read("check", data)
    federation = Federation(
        "check", 1, len(own.x_train), own.task, own.classes, len(own.classes), len(own.classes) or own.outputs
    )
    client = Client(read, own, federation)
    shared = {name: np.zeros(shape, np.float32) for name, shape in client.shared.items()}
    done = client.work(Round(1), shared, client.first())
    sent = {name: array.nbytes for name, array in done.contribution.items()}
    print(
        f"{read.method['name']}: {len(own.x_train)} samples, {own.task}; a round takes {done.seconds:.3f} s"
    )
    print(f"{sum(sent.values()):,} bytes of weights leave in a round: {', '.join(sent)}")


def _site(kit: Path, node_config: str, **options: object) -> None:
    if find_spec("flwr") is None:
        raise LightError("for a federation on Flower: pip install 'pflego-light[flower]'")
    from pflego_light.flower.site import run

    def ready(desk: object) -> None:
        print("ready: what is sent will stand beside the state", flush=True)

    run(kit, node_config, ready=ready, **options)  # type: ignore[arg-type]


def _visit(kit: Path, link: Path, data: Path, state: Path, threads: int) -> None:
    from pflego_light import Kit
    from pflego_light.desk import Desk
    from pflego_light.gateway import Gateway
    from pflego_light.terms import Site

    try:
        address, _, token = link.read_text().strip().partition("#token=")
    except OSError as error:
        raise LightError(f"{link} cannot be read: {error.strerror or error}") from error
    if not (address.startswith(("https://", "http://")) and token):
        raise LightError(f"{link} holds no link such as https://server.example.org/visit/#token=...")
    gateway = Gateway(address, token)
    desk = Desk(Kit.read(kit, threads=threads), Site(gateway.who(), str(data), state.expanduser()))
    desk.facts()
    print("ready: what is sent will stand beside the state", flush=True)
    gateway.take_part(desk)


if __name__ == "__main__":
    main()
