"""A kit: the backbone's two functions as ONNX files, and what the method asks of a client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from pflego_light.arrays import Array, Floats, Weights
from pflego_light.errors import FolderError, SettingError

_FORMAT = "pflego kit 2"
_METHODS = ("pflego", "fedavg", "fedprox", "fedper", "fedrep")


@dataclass(frozen=True)
class Kit:
    """What `pflego kit` wrote, checked against its digests."""

    spec: Mapping[str, Any]
    graphs: Graphs

    @classmethod
    def read(cls, folder: str | Path, *, threads: int = 1) -> Kit:
        """Read a kit; a file that is not the one it was made with is refused.

        threads: that a graph may use at a time.
        """
        folder = Path(folder).expanduser()
        try:
            spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
            if spec["format"] != _FORMAT:
                raise FolderError(f"{folder} is of another version: make it again with pflego kit")
            contents = {
                role: (folder / Path(file["name"]).name).read_bytes() for role, file in spec["files"].items()
            }
            for role, content in contents.items():
                if sha256(content).hexdigest() != spec["files"][role]["sha256"]:
                    raise FolderError(f"{folder}: the file {role} is not the one that the kit was made with")
        except FileNotFoundError as error:
            raise FolderError(f"{folder} holds no kit: {error.filename} is not there") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, FolderError):
                raise
            raise FolderError(f"{folder / 'spec.json'} is damaged: {error}") from error
        if spec["method"]["name"] not in _METHODS:
            raise SettingError(
                f"a light client plays {', '.join(_METHODS)}, and not {spec['method']['name']}"
            )
        return cls(spec, Graphs(spec, contents, threads))

    @property
    def method(self) -> Mapping[str, Any]:
        """The method's name and hyperparameters."""
        found: Mapping[str, Any] = self.spec["method"]
        return found

    @property
    def features(self) -> int:
        """M."""
        return int(self.spec["backbone"]["features"])

    @property
    def base(self) -> str:
        """A digest of the backbone's frozen weights, which are in the graphs; empty: there are none."""
        return str(self.spec["backbone"].get("base", ""))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Map name to shape for all of theta."""
        return {one["name"]: tuple(one["shape"]) for one in self.spec["backbone"]["parameters"]}

    def check(self, x: Array) -> None:
        """Refuse samples that the backbone was not made for."""
        wanted, shape = self.spec["inputs"]["stored"], tuple(self.spec["inputs"]["shape"])
        if x.shape[1:] != shape or str(x.dtype) != wanted:
            raise SettingError(
                f"the kit is for samples of shape {shape} and type {wanted}, and these are {x.dtype} of shape "
                f"{x.shape[1:]}"
            )

    def prepare(self, x: Array) -> Array:
        """Turn stored inputs into what the graphs take."""
        inputs = self.spec["inputs"]
        if inputs["divide_by"] == 1:
            return np.ascontiguousarray(x, dtype=inputs["dtype"])
        return np.divide(x, np.float32(inputs["divide_by"]), dtype=np.float32)


class Graphs:
    """The sessions that run a kit's files; each is made when it is first asked for."""

    def __init__(self, spec: Mapping[str, Any], contents: Mapping[str, bytes], threads: int) -> None:
        # whether the way back needs no second way forth: activations are kept, or there is no way back
        self.can_keep = "backward_kept" in contents or "backward" not in contents
        self._names = spec["names"]
        self._contents = dict(contents)
        self._threads = threads
        self._sessions: dict[str, tuple[onnxruntime.InferenceSession, list[str], list[str]]] = {}

    def features(self, theta: Weights, x: Array) -> Floats:
        """phi(x; theta), with no way back."""
        found: Floats = self._run("forward", {**theta, self._names["input"]: x})[
            self._names["features"]
        ].numpy()
        return found

    def forward(self, theta: Weights, x: Array, *, keep: bool) -> tuple[Floats, Mapping[str, Any]]:
        """phi(x; theta), and what the way back will need."""
        given = {**theta, self._names["input"]: x}
        found = self._run(
            "forward_keeping" if keep and "forward_keeping" in self._contents else "forward", given
        )
        return found.pop(self._names["features"]).numpy(), {**given, **found}

    def backward(
        self, passed: Mapping[str, Any], slope: Floats, names: Sequence[str], *, kept: bool
    ) -> Weights:
        """slope^T d phi / d theta; nothing, where all of theta is frozen."""
        if not names:
            return {}
        given = {**passed, self._names["slope"]: slope}
        found = self._run("backward_kept" if kept else "backward", given)
        return {name: found[self._names["gradient"] + name].numpy() for name in names}

    def _run(self, role: str, given: Mapping[str, Any]) -> dict[str, Any]:
        session, inputs, outputs = self._sessions.get(role) or self._session(role)
        feed = {name: _value(given[name]) for name in inputs}
        return dict(zip(outputs, session.run_with_ort_values(outputs, feed), strict=True))

    def _session(self, role: str) -> tuple[onnxruntime.InferenceSession, list[str], list[str]]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        made = onnxruntime.InferenceSession(self._contents[role], options, providers=["CPUExecutionProvider"])
        entry = made, [one.name for one in made.get_inputs()], [one.name for one in made.get_outputs()]
        self._sessions[role] = entry
        return entry


def _value(array: Any) -> Any:
    """Give an array to the runtime, which copies it only if it must."""
    if isinstance(array, np.ndarray):
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    return array
