"""The options of commands that train, spelled like the keyword arguments. Not given, they are None."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from pflego.errors import UserError

_DATA = "Data"
_METHOD = "Method"
_ROUNDS = "Rounds"
_RUN = "Run"

P = ParamSpec("P")


def _rate(text: str) -> float | str:
    """A number, or auto."""
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor auto") from None


def _classes(text: str) -> int | str:
    """A number, or a degree of personalisation."""
    if text in ("high", "medium", "none"):
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor high, medium or none") from None


def given(options: dict[str, object]) -> dict[str, object]:
    """The options that were given, as settings; those that a command has as one argument are spelled out."""
    bundled = {k: v for own in options.values() if isinstance(own, dict) for k, v in own.items()}
    single = {k: v for k, v in options.items() if not isinstance(v, dict)}
    return {
        k: str(v) if isinstance(v, Path) else v for k, v in {**bundled, **single}.items() if v is not None
    }


def spelled_out(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command all options about its data, or its method, in the place of one argument: of_data, of_method."""
    signature = inspect.signature(command, eval_str=True)
    bundles = {name: kinds for name, kinds in _BUNDLES.items() if name in signature.parameters}
    parameters = []
    for parameter in signature.parameters.values():
        kinds = bundles.get(parameter.name, {parameter.name: parameter.annotation})
        parameters += [parameter.replace(name=name, annotation=kind) for name, kind in kinds.items()]

    @wraps(command)
    def bundled(*args: P.args, **options: P.kwargs) -> None:
        for name, kinds in bundles.items():
            options[name] = {option: options.pop(option) for option in kinds if option in options}
        command(*args, **options)

    bundled.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return bundled


def beneath(file: Path | None, preset: str | None, given: dict[str, object]) -> dict[str, object]:
    """What options are laid over: the settings of a file, over those of one of the paper's experiments."""
    from pflego import paper
    from pflego.experiment import read_settings

    base = {} if file is None else read_settings(file)
    if preset is None:
        return base
    algorithm = str(given.get("algorithm", base.get("algorithm", "pflego")))
    return {**paper.preset(preset, algorithm), **base}


def folder_of(settings: dict[str, object]) -> Path:
    """The run's folder, which must be named."""
    if "out" not in settings:
        raise UserError("to resume a run, say where it is: --out FOLDER")
    return Path(str(settings["out"]))


SettingsFile = Annotated[
    Path | None,
    typer.Argument(help="A TOML file of the same names as the options; options given here take precedence."),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="One of the paper's experiments, such as mnist-high (pflego paper settings).",
        rich_help_panel=_DATA,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Data set (digits, mnist, ...; pflego data list), or your own: a file or a folder. \\[digits]",
        rich_help_panel=_DATA,
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(help="How many clients. \\[20, or those the data have]", rich_help_panel=_DATA),
]
ClassesPerClient = Annotated[
    int | None,
    typer.Option(
        parser=_classes,
        metavar="NUMBER",
        help="Classes each client holds, or high (2), medium (half of them), none (all): fewer make clients more "
        "different. \\[2]",
        rich_help_panel=_DATA,
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="Who gets what: classes, dirichlet, iid or column. \\[classes; omniglot: its alphabets]",
        rich_help_panel=_DATA,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        help="Of the Dirichlet partition: smaller is more different. \\[0.5]", rich_help_panel=_DATA
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        help="Column that names the clients; in a .npz file, the arrays <column>_train and <column>_test.",
        rich_help_panel=_DATA,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="How omniglot's test images are set aside: drawing, or paper (which leaks). \\[drawing]",
        rich_help_panel=_DATA,
    ),
]
Rotations = Annotated[
    int | None,
    typer.Option(help="In how many rotations omniglot's drawings are given. \\[4]", rich_help_panel=_DATA),
]
Label = Annotated[
    str | None,
    typer.Option(help="Column of labels. \\[label, target, y or class]", rich_help_panel=_DATA),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        help="classification or regression. \\[regression if labels are fractions]", rich_help_panel=_DATA
    ),
]
TestShare = Annotated[
    float | None,
    typer.Option(
        help="Share of each client's samples for testing, if the data do not say it. \\[0.2]",
        rich_help_panel=_DATA,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(help="Column to leave out; any number of times.", rich_help_panel=_DATA),
]
Scale = Annotated[
    bool | None,
    typer.Option(
        "--scale/--no-scale",
        help="Bring a table's numbers to mean 0 and standard deviation 1. \\[yes]",
        rich_help_panel=_DATA,
    ),
]
Gaps = Annotated[
    str | None,
    typer.Option(
        help="Missing values: refuse, drop (their rows) or mean (fill them). \\[refuse]",
        rich_help_panel=_DATA,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(help="Size of pictures: 32, or 48x32. \\[their own]", rich_help_panel=_DATA),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        help="How values become inputs, as pflego data schema has written it. \\[learned from the data]",
        rich_help_panel=_DATA,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder searched first, for <name>.npz or the official files. \\[$PFLEGO_DATA]",
        rich_help_panel=_DATA,
    ),
]
DataSeed = Annotated[
    int | None,
    typer.Option(help="Seed of the partition and of what is for testing. \\[--seed]", rich_help_panel=_DATA),
]

_OF_DATA = {
    "clients": Clients,
    "classes_per_client": ClassesPerClient,
    "partition": Partition,
    "alpha": Alpha,
    "column": Column,
    "label": Label,
    "task": TaskName,
    "test_share": TestShare,
    "drop": Drop,
    "scale": Scale,
    "gaps": Gaps,
    "size": Size,
    "schema": SchemaFile,
    "split": Split,
    "rotations": Rotations,
    "data_dir": DataDir,
}

AlgorithmName = Annotated[
    str | None,
    typer.Option(
        help="pflego, fedavg, fedprox, fedper, fedrep, fedbabu, ditto, fedrecon or local. \\[pflego]",
        rich_help_panel=_METHOD,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        help="Backbone: mlp, cifar-cnn, omniglot-conv4 or module:function. \\[by data set]",
        rich_help_panel=_METHOD,
    ),
]
ModelSeed = Annotated[
    int | None, typer.Option(help="Seed of the first weights. \\[--seed]", rich_help_panel=_METHOD)
]
Steps = Annotated[int | None, typer.Option(help="tau, local steps a round. \\[50]", rich_help_panel=_METHOD)]
ClientLr = Annotated[
    float | None,
    typer.Option(
        parser=_rate,
        metavar="RATE",
        help="beta, rate of the local steps; auto: what the theory allows. \\[auto]",
        rich_help_panel=_METHOD,
    ),
]
ServerLr = Annotated[
    float | None,
    typer.Option(
        parser=_rate,
        metavar="RATE",
        help="rho, rate of the joint step, or auto. \\[0.003; common head: 0.002]",
        rich_help_panel=_METHOD,
    ),
]
ServerOptimizer = Annotated[
    str | None, typer.Option(help="sgd, adam or any other of torch.optim. \\[adam]", rich_help_panel=_METHOD)
]
HeadStep = Annotated[
    str | None,
    typer.Option(
        help="The head's last step: paper, or exact (weighted by alpha_i). \\[paper]", rich_help_panel=_METHOD
    ),
]
HeadInit = Annotated[
    str | None,
    typer.Option(
        help="How heads start: zeros, uniform, centred or layer. \\[zeros]", rich_help_panel=_METHOD
    ),
]
HeadOptimizer = Annotated[
    str | None,
    typer.Option(help="The head's local steps: gd, momentum or adam. \\[gd]", rich_help_panel=_METHOD),
]
Momentum = Annotated[float | None, typer.Option(help="Momentum of the local steps.", rich_help_panel=_METHOD)]
CommonHead = Annotated[
    bool | None,
    typer.Option(
        "--common-head/--no-common-head",
        help="Share a part of every head, trained at the server. \\[no]",
        rich_help_panel=_METHOD,
    ),
]
HeadDecay = Annotated[
    float | None,
    typer.Option(help="Decay of the personal heads. \\[0; common head: 0.1]", rich_help_panel=_METHOD),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="Outputs of a shared head: local or global classes. \\[local]", rich_help_panel=_METHOD
    ),
]
Mu = Annotated[
    float | None, typer.Option(help="The pull of fedprox and ditto. \\[0.25]", rich_help_panel=_METHOD)
]
BodySteps = Annotated[
    int | None, typer.Option(help="fedrep's steps on the backbone. \\[5]", rich_help_panel=_METHOD)
]
FineTune = Annotated[
    int | None, typer.Option(help="fedbabu's steps before evaluation. \\[0]", rich_help_panel=_METHOD)
]
GlobalLr = Annotated[
    float | None,
    typer.Option(help="ditto's rate of the global model. \\[--client-lr]", rich_help_panel=_METHOD),
]
Reset = Annotated[
    bool | None,
    typer.Option(
        "--reset/--no-reset", help="fedrecon builds heads anew every round. \\[no]", rich_help_panel=_METHOD
    ),
]
_OF_METHOD = {
    "algorithm": AlgorithmName,
    "model": ModelName,
    "model_seed": ModelSeed,
    "steps": Steps,
    "client_lr": ClientLr,
    "server_lr": ServerLr,
    "server_optimizer": ServerOptimizer,
    "head_step": HeadStep,
    "head_init": HeadInit,
    "head_optimizer": HeadOptimizer,
    "momentum": Momentum,
    "common_head": CommonHead,
    "head_decay": HeadDecay,
    "labels": Labels,
    "mu": Mu,
    "body_steps": BodySteps,
    "fine_tune": FineTune,
    "global_lr": GlobalLr,
    "reset": Reset,
}

Bundle = dict[str, object] | None  # in a command that is `spelled_out`
_BUNDLES = {"of_data": _OF_DATA, "of_method": _OF_METHOD}

Participation = Annotated[
    str | None,
    typer.Option(
        help="Who takes part in a round: a number, everyone, binomial:0.2 or between:4-28. \\[everyone]",
        rich_help_panel=_ROUNDS,
    ),
]
Rounds = Annotated[int | None, typer.Option(help="T, rounds. \\[100]", rich_help_panel=_ROUNDS)]
Dropout = Annotated[
    float | None, typer.Option(help="Probability that a reply never arrives. \\[0]", rich_help_panel=_ROUNDS)
]
Deadline = Annotated[
    float | None,
    typer.Option(help="Seconds the server waits for replies. \\[for ever]", rich_help_panel=_ROUNDS),
]
SamplesPerSecond = Annotated[
    float | None,
    typer.Option(help="Speed of the median client, for --deadline. \\[1000]", rich_help_panel=_ROUNDS),
]
SpeedSpread = Annotated[
    float | None,
    typer.Option(help="How much speeds differ (log-normal sigma). \\[0.5]", rich_help_panel=_ROUNDS),
]
Missing = Annotated[
    str | None,
    typer.Option(help="Where replies are missing: zero or renormalise. \\[zero]", rich_help_panel=_ROUNDS),
]

Seed = Annotated[int | None, typer.Option(help="Decides every random draw. \\[0]", rich_help_panel=_RUN)]
EvaluateEvery = Annotated[
    int | None,
    typer.Option(
        help="Rounds between evaluations of everyone; 0: only at the end. \\[10]", rich_help_panel=_RUN
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Samples through the backbone at a time, for the same result. \\[all]", rich_help_panel=_RUN
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="keep activations; recompute them to save memory; gram: faster full steps through a first dense layer. "
        "\\[keep]",
        rich_help_panel=_RUN,
    ),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps, ... \\[auto]", rich_help_panel=_RUN)]
Engine = Annotated[
    str | None,
    typer.Option(
        help="Where clients work: local, distributed (in the processes torchrun starts) or flower-simulation (on a "
        "Ray cluster). \\[local]",
        rich_help_panel=_RUN,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the results. \\[runs/<data>-<algorithm>]", rich_help_panel=_RUN),
]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="Rounds between checkpoints. \\[1]", rich_help_panel=_RUN)
]
StatesPlace = Annotated[
    str | None, typer.Option(help="Hold client states in memory or on disk. \\[memory]", rich_help_panel=_RUN)
]
Track = Annotated[
    str | None,
    typer.Option(
        help="Log to tensorboard, mlflow, wandb or csv, or a list of them, in the run's folder.",
        rich_help_panel=_RUN,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on with the run in --out, with its own settings.", rich_help_panel=_RUN
    ),
]
