"""A kit's folder: graphs, and spec.json, which is written last and digests them: a folder that has one is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from pflego.after.kit.graphs import Graphs, export_graphs
from pflego.after.kit.spec import as_json, check_supported, spec_of
from pflego.algorithms.base import Algorithm
from pflego.errors import FolderError, path_of
from pflego.files import make_folder, write_atomically
from pflego.learning.model import Model
from pflego.learning.streaming import Streaming
from pflego.runs.record import versions

SPEC = "spec.json"


@dataclass(frozen=True)
class Kit:
    """What was written."""

    folder: Path
    files: tuple[Path, ...]
    error: float  # the largest against torch


def write_kit(
    folder: str | Path,
    model: Model,
    algorithm: Algorithm,
    x: Tensor,
    *,
    seed: int = 0,
    streaming: Streaming = Streaming(),
    task: str | None = None,
    classes: Sequence[int] = (),
    graphs: Graphs | None = None,
) -> Kit:
    """Write all that a client without torch needs to play rounds of a method.

    Parameters
    ----------
    folder
        A new one, or one that holds a kit, which is replaced.
    model, algorithm, seed, streaming
        What the run is made of.
    x
        A few samples as clients store them: the graphs are tried on them.
    task, classes
        The federation's, where they are known.
    graphs
        Those of the same model, where they were made before.
    """
    folder = path_of("folder", folder)
    check_supported(model, algorithm)
    if folder.exists() and not (folder.is_dir() and ((folder / SPEC).exists() or not any(folder.iterdir()))):
        raise FolderError(
            f"{folder} is there already, and holds something else than a kit: choose another folder"
        )
    graphs = graphs or export_graphs(model, x)
    make_folder(folder)
    (folder / SPEC).unlink(missing_ok=True)
    contents = {f"{name}.onnx": content for name, content in graphs.files().items()}
    for name, content in contents.items():
        write_atomically(folder / name, content)
    spec = spec_of(
        model,
        algorithm,
        shape=x.shape[1:],
        dtype=str(x.dtype).removeprefix("torch."),
        seed=seed,
        streaming=streaming,
        task=task,
        classes=classes,
        files={
            name.removesuffix(".onnx"): {
                "name": name,
                "bytes": len(content),
                "sha256": sha256(content).hexdigest(),
            }
            for name, content in contents.items()
        },
        error=graphs.error,
        versions=versions(),
    )
    write_atomically(folder / SPEC, as_json(spec))
    return Kit(folder, (*(folder / name for name in contents), folder / SPEC), graphs.error)
