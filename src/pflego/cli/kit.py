"""pflego kit: what a client without torch needs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from pflego.cli import whose
from pflego.cli.terminal import say
from pflego.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pflego.algorithms.base import Algorithm
    from pflego.federation.roster import Federation
    from pflego.learning.model import Model
    from pflego.learning.streaming import Streaming

_SAMPLES = 64  # that the graphs are tried on


def kit(
    settings: Annotated[
        Path,
        typer.Argument(
            metavar="SETTINGS|RUN|APP",
            help="A TOML file of settings, a run's folder, or the folder of a Flower app.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the kit.", show_default=False)],
    shape: Annotated[
        str | None, typer.Option(help="Of a sample, where no data are here: 28,28. \\[that of the data]")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Type that samples are stored in: uint8, float32, int64. \\[the data's]"),
    ] = None,
    trust: whose.Trust = False,
) -> None:
    """Write what a client without torch needs: the backbone's forward and backward graphs as ONNX, and a spec.

    [bold]pflego kit runs/a --out kit[/bold]

    [bold]pflego kit hospitals --out kit --shape 28,28 --dtype uint8[/bold] for the app of a deployment.

    [bold]pflego-light[/bold] plays rounds with it on a device that has NumPy and onnxruntime.
    """
    from pflego.after.kit import write_kit

    made = _parts(settings, _numbers(shape), dtype, trust=trust)
    done = write_kit(
        out,
        made.model,
        made.algorithm,
        made.x,
        seed=made.seed,
        streaming=made.streaming,
        task=made.task,
        classes=made.classes,
    )
    size = sum(path.stat().st_size for path in done.files)
    say(
        f"kit in {done.folder}: {', '.join(path.name for path in done.files)}; {size:,} bytes, "
        f"at most {done.error:.0e} from torch"
    )


class _Parts(NamedTuple):
    model: Model
    algorithm: Algorithm
    x: Tensor
    seed: int
    streaming: Streaming
    task: str | None
    classes: Sequence[int]


def _parts(path: Path, shape: tuple[int, ...] | None, dtype: str | None, *, trust: bool) -> _Parts:
    """Make model and method of what a path names, and find a few samples."""
    if path.is_dir() and (path / "pyproject.toml").exists():
        return _of_app(path, shape, dtype)
    if path.is_dir():
        return _of_run(path, shape, dtype, trust=trust)
    from pflego.declaration import arguments
    from pflego.learning.streaming import Streaming
    from pflego.settings.experiment import Experiment
    from pflego.settings.tables import read_settings

    made = Experiment.build(read_settings(path))
    streaming = Streaming(**arguments(Streaming, made.settings.tables["run"]))
    x = made.federation.some_inputs(_SAMPLES)
    assert x is not None
    return _Parts(made.model, made.algorithm, x, made.seed, streaming, *_task(made.federation))


def _of_run(path: Path, shape: tuple[int, ...] | None, dtype: str | None, *, trust: bool) -> _Parts:
    from pflego.federation.members import Members
    from pflego.settings.open_run import open_run

    run = open_run(path, trust=trust)
    x = run.federation.some_inputs(_SAMPLES)
    if x is None:
        members = Members.load(path)
        assert members is not None
        x = _drawn(run.model, shape or members.shape, dtype or members.dtype)
    plan = run.plan
    return _Parts(run.model, run.algorithm, x, plan.seed, plan.streaming, *_task(run.federation))


def _of_app(path: Path, shape: tuple[int, ...] | None, dtype: str | None) -> _Parts:
    if shape is None:
        raise SettingError(
            f"{path} is an app, and no data are here: say what a sample is like, --shape 28,28"
        )
    from pflego.deploy.flower.app_config import AppConfig
    from pflego.deploy.flower.terms import run_config

    config = AppConfig.read(run_config(path))
    model, asked = config.model(shape), config.assignment
    x = _drawn(model, shape, dtype or "float32")
    return _Parts(model, asked.algorithm, x, asked.seed, asked.streaming, None, ())


def _task(federation: Federation) -> tuple[str, Sequence[int]]:
    if federation.weighted:
        raise SettingError(
            "a client without torch counts every sample alike, and these data have weights: leave weight out "
            "(--weight), or let sites with torch take part"
        )
    classes = federation.classes
    return ("regression", ()) if classes is None else ("classification", classes)


def _drawn(model: Model, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Draw samples of a type: bytes, small whole numbers that every embedding has, or normal numbers."""
    import torch
    from torch import nn

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise SettingError(f"dtype must be one of torch's, such as uint8, float32 or int64, not {dtype!r}")
    generator = torch.Generator().manual_seed(0)
    if kind.is_floating_point:
        return torch.randn((_SAMPLES, *shape), generator=generator).to(kind)
    words = [layer.num_embeddings for layer in model.backbone.modules() if isinstance(layer, nn.Embedding)]
    most = 256 if kind == torch.uint8 else min(words, default=2)
    return torch.randint(most, (_SAMPLES, *shape), generator=generator).to(kind)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        raise SettingError(f"shape must be whole numbers such as 28,28, not {text!r}")
    return sizes
