"""A client's own model as files: what a device needs, and nothing else of the run.

    model.safetensors   all weights: backbone.<the backbone's own names>, head.<...>
    model.json          what they are: how the backbone is made, the classes and their names, how inputs are read
    model.pt2           the same model as a program of torch.export, which needs none of its code
    model.onnx          the same for ONNX runtimes

All of them take inputs as a client stores them (bytes are divided by 255 inside), any number of samples at a time, and
give the outputs of `run.personal_model(id)`. model.json is written last: a folder that has one is whole.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from pflego import models
from pflego.after.quiet import quiet
from pflego.data.schema import Schema, schema_of
from pflego.declaration import check_trusted, opening
from pflego.errors import (
    FolderError,
    SettingError,
    UntrustedError,
    UserError,
    check_choice,
    check_positive,
    path_of,
)
from pflego.federation.client import ClientId, checked_id
from pflego.files import make_folder, read_tensors, write_atomically, write_tensors
from pflego.learning.heads import LinearHead
from pflego.learning.model import Model, PersonalModel
from pflego.learning.modes import Norm
from pflego.runs.folder import RunFolder
from pflego.runs.record import digest_of_bytes, file_digest, versions
from pflego.runs.run import Run

Format: TypeAlias = Literal["safetensors", "torch", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)
_FILES: dict[Format, str] = {"safetensors": "model.safetensors", "torch": "model.pt2", "onnx": "model.onnx"}
_CARD = "model.json"
_FORMAT = "pflego model 2"


@dataclass(frozen=True)
class Exported:
    """What was written, and what was not."""

    folder: Path
    files: dict[Format, Path]
    refused: dict[Format, str]  # why there is no such file


@dataclass(frozen=True)
class Card:
    """What model.json says of a model."""

    client: ClientId
    backbone: str  # its name, as settings have it
    dtype: str
    norm: Norm | None  # what became of its batch norm
    made: Mapping[str, Any]  # what else decides its layers: the size of pictures, adapters
    outputs: int
    classes: tuple[int, ...]  # what the first outputs stand for; none in regression
    schema: Schema
    digests: Mapping[str, str]  # of the files beside it


def export(
    run: Run, client_id: ClientId, folder: Path, *, formats: Sequence[Format] = FORMATS, adapt: bool = False
) -> Exported:
    """Write a client's own model into a folder, in some formats; `Run.export` explains the rest."""
    if isinstance(formats, str) or not isinstance(formats, Sequence) or not formats:
        raise SettingError(f"formats must be a list of {', '.join(FORMATS)}, not {formats!r}")
    for file_format in formats:
        check_choice("format", file_format, FORMATS)
    client_id = run.federation.ids[run.federation.position(client_id)]  # as the federation writes it
    if RunFolder(folder).exists:
        raise FolderError(f"{folder} holds a run: choose another folder for the exported model")
    schema = schema_of(run.federation)
    model = run.personal_model(client_id, adapt=adapt)
    sample = run.federation.client(client_id).x_train[:1].to(getattr(torch, schema.dtype))
    programs, refused = _programs(model, sample, formats)
    files = {
        file_format: folder / _FILES[file_format] for file_format in formats if file_format not in refused
    }
    if not files:
        raise UserError(f"nothing can be exported: {'; '.join(refused.values())}")
    make_folder(folder)
    for name in [_CARD, *_FILES.values()]:
        try:
            (folder / name).unlink(missing_ok=True)  # of another model, perhaps
        except OSError as error:
            raise FolderError(f"cannot replace {folder / name}: {error.strerror}") from error
    if "safetensors" in files:
        write_tensors(files["safetensors"], model.state_dict(), {})
    for file_format, content in programs.items():
        write_atomically(files[file_format], content)
    card = {**_card(run, client_id, model, schema), **_about(files, refused)}
    card["digests"] = {path.name: file_digest(path) for path in files.values()}
    card["digest"] = _card_digest(card)
    write_atomically(folder / _CARD, f"{json.dumps(card, indent=1, ensure_ascii=False)}\n".encode())
    return Exported(folder, files, refused)


def is_exported(folder: Path) -> bool:
    """Tell whether a folder holds an exported model."""
    return (folder / _CARD).is_file()


def check_exported(folder: Path) -> dict[str, str | None]:
    """Look whether an exported model is whole: what is wrong with each file, None if nothing is."""
    found: dict[str, str | None] = {_CARD: None}
    try:
        digests = read_card(folder).digests
    except UserError as error:
        return {_CARD: str(error)}
    for name, digest in digests.items():
        whole = file_digest(folder / Path(name).name) == digest
        found[name] = None if whole else "it is damaged, missing, or not the file that was exported"
    return found


def read_card(folder: Path) -> Card:
    """Read an exported model's model.json."""
    path = folder / _CARD
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if facts["format"] != _FORMAT:
            raise FolderError(f"{path} was not written by this version of pflego")
        if facts["digest"] != _card_digest(facts):
            raise FolderError(f"{path} was changed since the model was exported: export it again")
        card = Card(
            checked_id(facts["client"]),
            facts["backbone"]["model"],
            facts["backbone"]["dtype"],
            facts["backbone"].get("norm"),
            {name: value for name in models.OF_LAYERS if (value := facts["backbone"].get(name)) is not None},
            facts["head"]["outputs"],
            tuple(one["id"] for one in facts["classes"]),
            Schema.from_json(json.dumps(facts["schema"])),
            {str(name): str(digest) for name, digest in facts["digests"].items()},
        )
        for value, kind in [(card.backbone, str), (card.dtype, str), *((n, int) for n in card.classes)]:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"{value!r} where a {kind.__name__} belongs")
        check_positive("outputs", card.outputs, whole=True)
        return card
    except FileNotFoundError as error:
        raise FolderError(f"{folder} holds no exported model: pflego export makes one") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, FolderError):
            raise
        raise FolderError(f"{path} is damaged: {error}") from error


def load_model(folder: str | Path, *, model: Model | None = None, trust: bool = False) -> PersonalModel:
    """Load an exported model again, without the run it comes from.

    Its backbone is built by its name and given its weights: nothing in the folder is run. A backbone of somebody's own
    is code, and so is the program of torch.export, which takes its place where it cannot be built: both need to be
    trusted, or the model to be given.

    Parameters
    ----------
    folder
        What `run.export` or `pflego export` wrote.
    model
        The model it was trained as.
    trust
        Load code that the folder names or holds. Only for folders whose maker you know.
    """
    with opening(trust=trust):
        return _load_model(path_of("folder", folder), model)


def _load_model(folder: Path, model: Model | None) -> PersonalModel:
    card = read_card(folder)
    classes = torch.tensor(card.classes, dtype=torch.long)
    weights, program = folder / _FILES["safetensors"], folder / _FILES["torch"]
    if model is None and weights.exists():
        try:
            model = models.build(
                card.backbone, card.schema.shape, norm=card.norm, pretrained="no", **card.made
            )
        except UserError as error:
            if isinstance(error, UntrustedError):
                raise
            if not program.exists():
                raise UserError(
                    f"the backbone of {folder} cannot be made again ({error}); if it was made in Python, "
                    f"give it: pflego.load_model(folder, model=...)"
                ) from error
    for name, problem in check_exported(folder).items():
        if problem is not None:
            raise FolderError(f"{folder / name}: {problem}")
    if model is not None and weights.exists():
        return _with_weights(model, card, classes, weights)
    if not program.exists():
        raise FolderError(
            f"{folder} has neither {weights.name} nor {program.name}: export the model in one of these formats"
        )
    check_trusted(f"{program} of torch.export")
    with quiet():
        try:
            module = _Program(torch.export.load(program))
        except Exception as error:  # zipfile, json, pickle and torch have their own for damaged files
            raise FolderError(f"{program} is damaged: {_cause(error)}") from error
        return PersonalModel(module, nn.Identity(), classes, lambda x: x)


class _Program(nn.Module):
    """A program of torch.export as a module like any other."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self._run = (program.module(),)  # out of the sight of eval(), which it refuses

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self._run[0](x)
        return outputs


def _with_weights(model: Model, card: Card, classes: Tensor, path: Path) -> PersonalModel:
    tensors, _ = read_tensors(path)
    first = model.head(card.outputs).init("zeros", torch.Generator(), model.weight_dtype)
    personal = model.personal({**model.weights(), **first}, card.outputs, classes)
    try:
        personal.load_state_dict(tensors)
        fits = str(model.dtype) == f"torch.{card.dtype}"
    except RuntimeError:
        fits = False
    if not fits:
        raise UserError(f"{path} holds the weights of another model than {model.source['model']!r}")
    return personal


def _programs(
    model: PersonalModel, sample: Tensor, formats: Sequence[Format]
) -> tuple[dict[Format, bytes], dict[Format, str]]:
    """Export the model as programs that need none of its code; say why not in the formats that refuse."""
    contents: dict[Format, bytes] = {}
    refused: dict[Format, str] = {}
    wanted = [file_format for file_format in formats if file_format != "safetensors"]
    if not wanted:
        return contents, refused
    with quiet():
        try:
            program = torch.export.export(
                model,
                (torch.cat([sample, sample]),),  # one sample would be taken for the only number there can be
                dynamic_shapes=({0: torch.export.Dim("samples")},),
                strict=False,
            )
        except Exception as error:  # whatever somebody else's module does
            return contents, dict.fromkeys(wanted, f"torch.export cannot follow the model: {_cause(error)}")
        for file_format in wanted:
            try:
                contents[file_format] = _saved(program) if file_format == "torch" else _onnx(program)
            except Exception as error:  # an operation that a format has not, or no library to write it
                refused[file_format] = _cause(error)
    return contents, refused


def _saved(program: torch.export.ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _onnx(program: torch.export.ExportedProgram) -> bytes:
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise ModuleNotFoundError("for ONNX: pip install 'pflego[export]'")
    converted = torch.onnx.export(
        program, (), dynamo=True, verbose=False, input_names=["x"], output_names=["outputs"]
    )
    assert converted is not None
    content: bytes = converted.model_proto.SerializeToString()
    return content


def _card_digest(facts: Mapping[str, object]) -> str:
    text = json.dumps({name: value for name, value in facts.items() if name != "digest"}, sort_keys=True)
    return digest_of_bytes(text.encode())


def _card(run: Run, client_id: ClientId, model: PersonalModel, schema: Schema) -> dict[str, object]:
    """Return everything a stranger to the run needs to know."""
    classes: list[int] = model.get_buffer("classes").tolist()
    outputs = run.problems[run.federation.position(client_id)].outputs
    dtype = str(run.model.dtype).removeprefix("torch.")
    linear = isinstance(run.model.head(outputs), LinearHead)
    meaning = (
        "scores, one per class in the order of classes: the largest is the answer, a softmax over all gives "
        "probabilities; those beyond the last class stand for none"
        if classes
        else f"times {schema.label_scale} plus {schema.label_mean} they are the predicted numbers"
    )
    return {
        "format": _FORMAT,
        "client": client_id,
        "trained": {
            "data": run.settings["data"].get("name"),
            "algorithm": run.algorithm.name,
            "rounds": len(run.history),
            "seed": run.plan.seed,
        },
        "backbone": {
            "model": str(run.model.source["model"]),
            "features": run.model.features,
            "dtype": dtype,
            **({"norm": run.model.norm} if run.model.norm else {}),
            **{name: run.model.source[name] for name in models.OF_LAYERS if name in run.model.source},
            "parameters": [name for name, _ in model.backbone.named_parameters()],
        },
        "head": {
            "kind": "linear" if linear else type(model.head).__name__,
            "outputs": outputs,
            "parameters": [name for name, _ in model.head.named_parameters()],
        },
        "classes": [{"id": c, "name": schema.class_name(c)} for c in classes],
        "inputs": {
            "shape": ["samples", *schema.shape],
            "dtype": schema.dtype,
            "preparation": f"inside the model: uint8 is divided by 255, floats become {dtype}",
        },
        "outputs": {"shape": ["samples", outputs], "meaning": meaning},
        "schema": json.loads(schema.to_json()),
        "versions": versions(),
    }


def _about(files: dict[Format, Path], refused: dict[Format, str]) -> dict[str, object]:
    """Describe which files there are, and how each is used."""
    use: dict[Format, str] = {
        "safetensors": "pflego predict FOLDER --data FILE; in Python: pflego.load_model(FOLDER).predict(x)",
        "torch": "torch.export.load('model.pt2').module()(x) gives the outputs",
        "onnx": "onnxruntime.InferenceSession('model.onnx').run(None, {'x': x})[0] gives the outputs",
    }
    return {
        "files": {
            file_format: {"name": path.name, "use": use[file_format]} for file_format, path in files.items()
        },
        "not_written": dict(refused),
    }


def _cause(error: Exception) -> str:
    """Return the first line of the root cause of an error."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__
