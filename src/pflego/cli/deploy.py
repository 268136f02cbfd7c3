"""pflego deploy: a federation across real machines, on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import gateway
from pflego.cli.export import Adapt, Format, Out, formats_called, tell
from pflego.cli.gateway import needs_flower
from pflego.cli.terminal import say

if TYPE_CHECKING:
    from rich.table import Table

    from pflego.deploy.flower.secure.settings import SecureSum
    from pflego.deploy.inspection import Line
    from pflego.exchange.privacy import ClientPrivacy

app = typer.Typer(
    help="A federation across real machines, on Flower: the app, certificates, keys, and what leaves a site.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

members = typer.Typer(
    help="Let a client join a run that goes on, or say that one is gone; the server does so before the next round.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(members, name="member")

ClientName = Annotated[str, typer.Argument(help="The client's id.", show_default=False)]
RunFolder = Annotated[
    Path,
    typer.Option("--out", help="The server's folder of the run, [bold]out[/bold] in the app's settings."),
]
AppFolder = Annotated[Path, typer.Argument(help="The folder of the Flower app.", show_default=False)]
NodeConfig = Annotated[
    str,
    typer.Option(
        help='As the SuperNode is started: \'client-id="ward-3" data="own.npz" state="state"\'.',
        show_default=False,
    ),
]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)],
    settings: Annotated[
        Path | None,
        typer.Argument(help="A TOML file of settings: those of [bold]pflego run[/bold] but for the data."),
    ] = None,
) -> None:
    """Write a Flower app: what server and sites run, its settings, and step by step what to type where.

    [bold]pflego deploy init hospitals[/bold] begins with the defaults; edit hospitals/pyproject.toml.
    """
    needs_flower()
    from pflego.deploy.folder import write_app
    from pflego.settings.tables import read_settings

    for path in write_app(folder, {} if settings is None else read_settings(settings)):
        say(path)
    say(f"next: edit {folder / 'pyproject.toml'}, then follow {folder / 'README.md'}")


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="Where to put them.", show_default=False)],
    host: Annotated[
        list[str],
        typer.Option(help="A name or address that sites reach the server by; more than one is fine."),
    ],
    days: Annotated[int, typer.Option(help="How long they are good for.", min=1)] = 365,
) -> None:
    """Make certificates for a trial: an authority of its own (ca.crt) and the server's certificate.

    [bold]pflego deploy certs certs --host server.example.org --host 10.0.0.5[/bold]

    Sites need ca.crt and nothing else. server.key stays on the server, ca.key can be deleted.
    """
    needs_flower()
    from pflego.deploy.certificates import write_certificates

    for path in write_certificates(folder, host, days=days):
        say(path)


@app.command()
def key(
    path: Annotated[Path, typer.Argument(help="The private key's file; .pub is added for the public one.")],
) -> None:
    """Make a site's key pair. The private key never leaves the site; the server registers the public one."""
    needs_flower()
    from pflego.deploy.certificates import write_key

    for written in write_key(path):
        say(written)


@app.command()
def server(
    folder: AppFolder,
    certs: Annotated[
        Path, typer.Option(help="Where pflego deploy certs has put ca.crt, server.pem, server.key.")
    ],
    home: Annotated[
        Path, typer.Option(help="For Flower's database and the connection of the flwr commands (FLWR_HOME).")
    ] = Path("flower"),
    port: Annotated[
        int, typer.Option(help="Of the SuperLink, on this machine alone.", min=1, max=65535)
    ] = 8000,
) -> None:
    """Serve and train. The same command again goes on after the last checkpoint, also after a power cut.

    [bold]pflego deploy server hospitals --certs certs[/bold]

    Nobody outside reaches the SuperLink but through nginx, which hospitals/nginx.conf is for.
    """
    needs_flower()
    from pflego.deploy.server import run

    run(folder, certs=certs, home=home, port=port)


@app.command()
def site(
    folder: AppFolder,
    node_config: NodeConfig,
    superlink: Annotated[str, typer.Option(help="The server's name and port: server.example.org:8443.")],
    root_certificates: Annotated[
        Path, typer.Option(help="ca.crt, which the server's certificate is held to.")
    ],
    key: Annotated[Path, typer.Option(help="The site's private key.")],
    port: Annotated[
        int, typer.Option(help="Of the SuperNode, on this machine alone; 0: any.", min=0, max=65535)
    ] = 0,
    poll: Annotated[
        float, typer.Option(help="Seconds between two looks for messages.", min=0.05, max=60)
    ] = 0.5,
    light: Annotated[
        bool,
        typer.Option(
            "--light", help="FOLDER is a kit of pflego kit: take part without torch, by pflego-light."
        ),
    ] = False,
) -> None:
    """Take part: a SuperNode, and a worker that keeps torch loaded.

    It runs the pflego that is installed here, and never a program that the server has sent. The app in FOLDER is what
    this site agrees to: a server that asks for another method, model or setting is refused.
    """
    needs_flower()
    if light:
        from pflego.deploy.light import become_light

        words = {"--node-config": node_config, "--superlink": superlink, "--key": key}
        words |= {"--root-certificates": root_certificates, "--port": port, "--poll": poll}
        become_light(folder, words)
    from pflego.deploy.site import run

    run(
        folder,
        node_config,
        superlink=superlink,
        key=key,
        root_certificates=root_certificates,
        port=port,
        poll=poll,
        ready=lambda seen: say(
            f"ready: {seen.bytes:,} bytes of weights leave in a round; what was sent stands beside {seen.file}"
        ),
    )


@app.command()
def inspect(
    folder: AppFolder,
    node_config: NodeConfig,
) -> None:
    """Show a site what will leave its machine, before it joins. Nothing is sent, and nothing is written.

    One round's work is really done on the site's own data; what is shown is what would be sent.
    """
    needs_flower()
    from pflego.cli.console import Console
    from pflego.deploy.inspection import inspect

    console = Console(highlight=False, soft_wrap=True)
    seen = inspect(folder, node_config)
    console.print("[bold]What leaves this machine[/bold]")
    console.print("\nonce, when the server asks who is here")
    for name, value in seen.once.items():
        console.print(f"  {name}: {value}", markup=False)
    console.print(f"\nin every round that this client takes part in: {seen.bytes:,} bytes of weights")
    console.print(_table(seen.message))
    if seen.privacy is None:
        console.print("and numbers: " + ", ".join(seen.metrics))
        console.print("\nwhen everybody is evaluated: how many test samples, their loss and score")
    else:
        console.print(
            "and nothing else: no loss, no score, no number of samples, none of its own classes (samples, tests and "
            "classes above are the same for every site)"
        )
        if not seen.secure.on:
            console.print(
                f"the server clips it to a norm of {seen.privacy.clip:g} and adds noise to the sum ({seen.privacy}): "
                "what it gives to others hardly depends on this client; the server itself sees the message as it is"
            )
    if seen.secure.on:
        console.print(f"\n[bold]What the server sees of that[/bold]: {_of_sums(seen.secure, seen.privacy)}")
    console.print(
        f"\n[bold]What comes in[/bold]: {sum(line.bytes for line in seen.received):,} bytes of weights"
    )
    if seen.outputs_unknown:
        console.print("(counted with this client's classes alone: the head grows with those of the others)")
    console.print("\n[bold]What never leaves[/bold]")
    console.print(_table([*seen.data, *seen.kept]))
    if seen.kept:
        console.print(f"{', '.join(line.name for line in seen.kept)}: kept in {seen.file}", markup=False)
    for name in seen.altered:
        console.print(
            f"[bold]warning[/bold]: {folder / name} is not as pflego wrote it, and runs on this machine: read it"
        )


@app.command()
def export(
    folder: AppFolder,
    node_config: NodeConfig,
    out: Out,
    file_format: Format = "all",
    adapt: Adapt = False,
) -> None:
    """Write a site's own model as files, at the site: what is shared, and the head that never left it.

    The shared weights are those of the last evaluation of everyone, which follows the last round.
    [bold]pflego predict FOLDER --data new.csv[/bold] uses the model, and so do torch.export.load and ONNX runtimes.
    """
    needs_flower()
    from pflego.deploy.own_model import own_run

    formats = formats_called(file_format)
    run = own_run(folder, node_config)
    (client_id,) = run.federation.ids
    done = run.export(client_id, out, formats=formats, adapt=adapt)
    tell(f"client {client_id}'s model after round {len(run.history)}", done)


@members.command()
def join(client: ClientName, out: RunFolder = Path("runs/federation")) -> None:
    """Let a client in: it joins before the next round, or when its site has reported in.

    It makes a head for the weights as they are then, at its own site; one that was here before goes on with the head it
    has. Its key must be registered, as every site's.
    """
    from pflego.deploy.requests import Request, ask

    ask(out, Request("join", client))
    say(f"client {client} joins before the next round, or when its site has reported in")


@members.command()
def leave(client: ClientName, out: RunFolder = Path("runs/federation")) -> None:
    """Say that a client is gone: from the next round on nobody asks it or waits for it.

    Its site may be switched off. Its head stays on its own disk, for the day when it joins again.
    """
    from pflego.deploy.requests import Request, ask

    ask(out, Request("leave", client))
    say(f"client {client} leaves before the next round")


for visitors in (gateway.gateway, gateway.token):
    app.command()(visitors)


def _of_sums(secure: SecureSum, privacy: ClientPrivacy | None) -> str:
    finish = (
        "masked before they leave; so are the numbers beside them"
        if privacy is None
        else f"given this machine's part of the noise ({privacy}), then masked before they leave: the parts of those "
        "who must stay make up all of the noise, so that the server has no exact sum"
    )
    return (
        f"sums alone, each of {secure.threshold:.0%} of a round's clients or more, and never of fewer than "
        f"{secure.least}. Weights are shortened to a norm of {secure.limit:g}, multiplied by this client's share and "
        f"{finish}. In every sum there leave too: two public keys, encrypted shares for the other clients, and shares "
        "of theirs at the end"
    )


def _table(lines: list[Line]) -> Table:
    from rich.table import Table

    table = Table()
    for heading in ("name", "type", "shape"):
        table.add_column(heading)
    table.add_column("bytes", justify="right")
    for line in lines:
        table.add_row(line.name, line.dtype, " × ".join(map(str, line.shape)) or "1", f"{line.bytes:,}")
    return table
