"""The frozen beginning of a backbone: what it makes of a client's samples is computed once, and kept for all rounds.

    phi(x; theta) = rest(trunk(x); theta)

The trunk is the longest run of layers, from the input on, that are constants: none of their parameters is trained,
none is personal, nothing in them draws at random, and no batch norm among them moves its statistics. What is to be cut
is an nn.Sequential, within others too, or a module with `.trunk` and `.rest`, of which it is one after the other. A
beginning without a single parameter costs nothing, and is no trunk.

A client beyond the trunk has the trunk's outputs for inputs. All that is learned, by every method and every engine, is
learned from those; they are the numbers that a pass through the whole backbone would have met on its way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from pflego.codec import digest
from pflego.federation.client import Client
from pflego.learning.dense import layers_of
from pflego.learning.modes import acts_by_mode, sharing
from pflego.learning.stateless import Stateless
from pflego.learning.trunk_store import STORE

if TYPE_CHECKING:
    from pflego.learning.model import Model
    from pflego.learning.problem import Problem

Named = tuple[str, nn.Module]


class Trunk:
    """The frozen beginning of a model, and the model that is left.

    Parameters
    ----------
    trunk, rest
        The two parts, as `Trunk.of` cuts them.
    """

    def __init__(self, trunk: nn.Module, rest: Model) -> None:
        self.rest = rest
        self._function = Stateless(trunk)
        self._weights = {**dict(trunk.named_parameters()), **dict(trunk.named_buffers())}
        self._layers = _described(trunk)
        self._lock = threading.Lock()
        self._digests: dict[tuple[int, ...], str] = {}
        # of inputs that were digested before: how often they were written to then, and the digest
        self._keys: MutableMapping[Tensor, tuple[int | None, str]] = WeakTensorKeyDictionary()
        self._tried = False  # whether it is known if the rest writes to its inputs

    @classmethod
    def of(cls, model: Model) -> Trunk | None:
        """Cut a model where its frozen beginning ends; None where it has none."""
        tensors = dict(
            [
                *model.backbone.named_parameters(remove_duplicate=False),
                *model.backbone.named_buffers(remove_duplicate=False),
            ]
        )
        moving = {id(tensors[name]) for name in (*model.names, *model.statistics)}
        count = 0
        for _, piece in _pieces("", model.backbone):
            trained = any(id(tensor) in moving for tensor in (*piece.parameters(), *piece.buffers()))
            if trained or (model.live and acts_by_mode(piece)):
                break
            count += 1
        if count == 0:
            return None
        frozen, left = _cut(model.evaluated, count)[0], _cut(model.backbone, count)[1]
        if next(frozen.parameters(), None) is None:
            return None
        rest = model.with_backbone(left)
        return cls(frozen, rest) if rest.names == model.names else None

    @property
    def digest(self) -> str:
        """Digest of its layers and weights, computed again when one of them was written to."""
        versions = tuple(_version(tensor) for tensor in self._weights.values())
        with self._lock:
            if versions not in self._digests:
                self._digests = {versions: digest(self._weights, facts=self._layers)}
            return self._digests[versions]

    @torch.no_grad()
    def compute(self, problem: Problem, x: Tensor) -> Tensor:
        """Pass inputs through the trunk, in the slices in which they would go through the whole backbone."""
        slices = [self._function({}, inputs) for inputs in problem.in_slices(x)]
        return (slices[0] if len(slices) == 1 else torch.cat(slices)).cpu()

    def outputs(self, problem: Problem, x: Tensor) -> tuple[Tensor, bool]:
        """Give what becomes of a client's inputs, and whether that had to be computed."""
        STORE.limit = problem.streaming.budget.limit
        key = f"{self._key(x)}, {problem.slice} at a time"  # the last bit may depend on that
        known = STORE.get(key)
        outputs = STORE.put(key, self.compute(problem, x)) if known is None else known
        if not self._tried:
            self._try(outputs[:1].to(problem.device))
        return outputs, known is None

    def _key(self, x: Tensor) -> str:
        """Digest trunk and inputs, inputs only if that was not done before or they were written to since."""
        with self._lock:
            version, known = self._keys.get(x, (None, ""))
        if version != _version(x):
            known = digest({"x": x})
            with self._lock:
                self._keys[x] = (_version(x), known)
        return f"{self.digest} {known}"

    @torch.no_grad()
    def _try(self, sample: Tensor) -> None:
        """Let the rest work on copies if it writes to its inputs, which are kept for the next round."""
        given, chain = sample.clone(), self.rest.backbone
        assert isinstance(chain, _Chain)
        self.rest.phi({name: w.to(sample.device) for name, w in self.rest.weights().items()}, given)
        chain.copies.needed = not torch.equal(given, sample)
        self._tried = True


class BeyondTrunk(Client):
    """A client whose inputs are the outputs of a trunk, computed or looked up when they are asked for."""

    def __init__(self, trunk: Trunk, problem: Problem) -> None:
        client = problem.client
        self.id, self.y_train, self.y_test = client.id, client.y_train, client.y_test
        self.weights = client.weights
        self.__dict__["classes"] = client.classes
        self.passed = 0  # training samples that went through the trunk for this problem
        self._trunk, self._whole = trunk, problem

    @property
    def x_train(self) -> Tensor:  # type: ignore[override]
        """The trunk's outputs for the training data."""
        outputs, computed = self._trunk.outputs(self._whole, self._whole.client.x_train)
        self.passed += computed * len(outputs)
        return outputs

    @property
    def x_test(self) -> Tensor:  # type: ignore[override]
        """The trunk's outputs for the test data."""
        x = self._whole.client.x_test
        return self._trunk.outputs(self._whole, x)[0] if len(x) else x


class _Copies:
    """Whether inputs are copied first. All copies of a module ask the same one."""

    needed = False

    def __deepcopy__(self, memo: object) -> _Copies:
        return self


class _Chain(nn.Module):
    """Some layers of a module, one after the other, under the names that they have in it."""

    def __init__(self, pieces: Sequence[Named]) -> None:
        super().__init__()
        self.order = [name for name, _ in pieces]
        self.copies = _Copies()
        for name, piece in pieces:
            *path, last = name.split(".")
            parent: nn.Module = self
            for part in path:
                if part not in parent._modules:
                    parent.add_module(part, nn.Module())
                parent = parent.get_submodule(part)
            parent.add_module(last, piece)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone() if self.copies.needed else x
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x


def _cut(module: nn.Module, count: int) -> tuple[_Chain, _Chain]:
    """Cut a module after some of its pieces. Layers are copied, for threads of their own; tensors are not."""
    pieces = list(_pieces("", sharing(module)))
    return _Chain(pieces[:count]), _Chain(pieces[count:])


def _pieces(name: str, module: nn.Module) -> Iterator[Named]:
    """Take a module apart, as far as it is a sequence of others."""
    inner: list[Named] = []
    if type(module) is nn.Sequential:
        inner = layers_of(module)
    elif {"trunk", "rest"} <= module._modules.keys():
        inner = [(part, module.get_submodule(part)) for part in ("trunk", "rest")]
    if not inner:
        yield name or "whole", module
    for own, piece in inner:
        yield from _pieces(f"{name}.{own}".removeprefix("."), piece)


_CLASSES: dict[type, int] = {}  # one written anew under its old name is another


def _described(trunk: nn.Module) -> str:
    """Say what layers there are and how they were made, so that others with the same weights are not taken for them."""
    said: list[object] = []
    for name, module in trunk.named_modules():
        kind = _CLASSES.setdefault(type(module), len(_CLASSES))
        own = {
            key: digest({"": value}) if isinstance(value, Tensor) else repr(value)
            for key, value in vars(module).items()
            if not key.startswith("_") and key not in ("training", "copies")
        }
        said.append((name, kind, type(module).__qualname__, module.training, sorted(own.items())))
    return repr(said)


def _version(tensor: Tensor) -> int:
    """Count how often a tensor was written to."""
    return -1 if tensor.is_inference() else tensor._version
