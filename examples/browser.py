"""Draw digits in a browser, and let eight others help you to a model of your own.

The others are played here: light clients, each with its part of a collection of handwritten digits, which come in
through the same gateway as your browser does. Training begins when you take part.
"""

from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np
from rich.console import Console

import pflego
from pflego.after.kit import write_kit
from pflego.deploy.folder import write_app
from pflego.deploy.gateway import tokens
from pflego.deploy.gateway.alone import run
from pflego_light import Kit
from pflego_light.desk import Desk
from pflego_light.gateway import Gateway
from pflego_light.terms import Site

OTHERS, ROUNDS, STEPS, PORT = 8, 40, 20, 8001


def main() -> None:
    """Make all that is needed, and serve."""
    console, you = Console(), f"you-{token_hex(2)}"
    with TemporaryDirectory(prefix="pflego-") as temporary:
        folder = Path(temporary)
        names = [f"other-{place}" for place in range(OTHERS)]
        federation = pflego.load("digits", clients=OTHERS, classes_per_client=4, seed=0)
        for name, client in zip(names, federation, strict=True):
            arrays = {
                part: getattr(client, part).numpy() for part in ("x_train", "y_train", "x_test", "y_test")
            }
            np.savez(folder / f"{name}.npz", **arrays)
        with console.status("making the network's graphs, once per start"):
            model = pflego.models.build("mlp", (64,), seed=0)
            write_kit(folder / "kit", model, pflego.PFLEGO(steps=STEPS), federation.client(0).x_train[:16])
        app = {
            "steps": STEPS,
            "rounds": ROUNDS,
            "evaluate_every": 0,
            "device": "cpu",
            "out": str(folder / "out"),
        }
        write_app(
            folder / "app", {**app, "members": ", ".join([you, *names]), "wait": 7200, "reply_timeout": 120}
        )
        file = folder / "tokens.json"
        given = {name: tokens.give(file, name) for name in [you, *names]}

        def ready(address: str) -> None:
            console.print(
                f"\n[bold]Open this in a browser[/bold]: {address}#token={given[you]}\n", soft_wrap=True
            )
            for name in names:
                Thread(target=play, args=(folder, name, address, given[name]), daemon=True).start()

        gateway = {"gateway_port": PORT, "gateway_kit": str(folder / "kit"), "gateway_tokens": str(file)}
        run(folder / "app", gateway, ready=ready)


def play(folder: Path, name: str, address: str, token: str) -> None:
    """Be one of the others."""
    gateway = Gateway(address, token)
    gateway.who()
    gateway.take_part(Desk(Kit.read(folder / "kit"), Site(name, str(folder / f"{name}.npz"), folder / name)))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped")
