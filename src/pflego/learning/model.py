"""What is shared and what is personal: a backbone for everybody, a head for each client."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflego.codec import digest
from pflego.errors import ModelError
from pflego.learning.dense import Dense
from pflego.learning.gram import Opening
from pflego.learning.heads import HEAD, Head, LinearHead, ModuleHead, is_head
from pflego.learning.memory import Activations
from pflego.learning.modes import (
    NORMS,
    Norm,
    batch_norms,
    drawing,
    dropouts,
    evaluation_copy,
    is_statistic,
    statistics_of,
    training_copy,
    unruled,
    with_group_norm,
)
from pflego.learning.parts import part_names, resolve, trained_names
from pflego.learning.stateless import Stateless
from pflego.learning.trunk import Trunk
from pflego.randomness import seeded
from pflego.weights import Weights, master_dtype

_SLICE = 32  # images that go through convolutions at a time: their activations then stay near the core


class Model:
    """A backbone phi(x; theta) with M outputs, and a head on top of it.

    Parameters
    ----------
    backbone
        Any module that maps a batch to (samples, features). Its trainable parameters are theta and their
        present values theta_0; training works on copies and leaves the module alone. Frozen parameters and
        buffers are constants: they are not trained and not sent.
    features
        M, the number of its outputs.
    head
        A function (features, outputs) -> nn.Module that makes a head. Without it heads are linear, one tensor
        W, (K, M + 1), with steps in closed form.
    personal
        Parts of the backbone that stay with each client, beside its head: names of parameters or modules, or the
        beginnings of dotted names, in a list or a text with commas. "head" keeps a head at home that a method would
        share. They start alike everywhere.
    frozen
        Parts of the backbone that are not trained, by the same kinds of names; or "all".
    trained
        The parts that are trained, all others are not.
    norm
        What becomes of batch norm: "frozen", its statistics are constants; "group", GroupNorm takes its place;
        "personal", weights and statistics stay with each client; "averaged", statistics travel like weights. If not
        given, frozen, and its layers must be in evaluation mode.

    A backbone of half precision (float16, bfloat16) computes in it; weights are kept, sent and trained in float32.

    >>> Model(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), features=32).names
    ('1.weight', '1.bias')
    >>> Model(nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32)), features=32, personal=["1"]).personal_names
    ('1.weight', '1.bias')
    """

    def __init__(
        self,
        backbone: nn.Module,
        features: int,
        *,
        head: Callable[[int, int], nn.Module] | None = None,
        personal: str | Sequence[str] | None = None,
        frozen: str | Sequence[str] | None = None,
        trained: str | Sequence[str] | None = None,
        norm: Norm | None = None,
        source: Mapping[str, object] | None = None,
    ) -> None:
        if not isinstance(backbone, nn.Module):
            raise ModelError(f"a backbone must be a torch.nn.Module, not {type(backbone).__name__}")
        if not isinstance(features, int) or features < 1:
            raise ModelError(f"features must be the number of the backbone's outputs, not {features!r}")
        if norm is not None and norm not in NORMS:
            raise ModelError(f"norm must be one of {', '.join(NORMS)}, not {norm!r}")
        self.backbone = backbone = with_group_norm(backbone) if norm == "group" else backbone
        self.features = features
        self._make_head = head
        self._heads: dict[int, Head] = {}
        self._lock = threading.Lock()
        self._activation_bytes: int | None = None
        parts = part_names(personal)
        self._frozen, self._trained = frozen, trained
        given = {"personal": personal, "frozen": frozen, "trained": trained}
        spoken = {what: ", ".join(part_names(names, what)) for what, names in given.items() if names}
        self.source = {
            **(source or {"model": type(backbone).__name__}),
            **spoken,
            **({"norm": norm} if norm else {}),
        }
        free = {name: p.numel() for name, p in backbone.named_parameters() if p.requires_grad}
        self.sizes = {name: free[name] for name in trained_names(tuple(free), frozen, trained)}
        self.names = tuple(self.sizes)
        self.held = tuple(n for n, _ in backbone.named_parameters() if n not in self.sizes)  # never trained
        if clash := [name for name in self.names if is_head(name)]:
            raise ModelError(f"the backbone's parameter {clash[0]!r} is called like a head's: rename it")
        if clash := [name for name in self.names if is_statistic(name)]:
            raise ModelError(
                f"the backbone trains {clash[0]!r}, called like a statistic of batch norm: rename it"
            )
        self._set_modes(norm)
        everything = (*self.names, *self.statistics)
        own = [n for n in everything if norm == "personal" and n in self.norm_names]
        # what stays with each client
        self.personal_names = tuple(dict.fromkeys([*resolve(parts, everything), *own]))
        self.personal_head = HEAD in parts  # whether a method's common head does, too
        convolutions = [m for m in backbone.modules() if isinstance(m, nn.Conv2d)]
        self._channels = convolutions[0].in_channels if convolutions else None
        self.slice = _SLICE if convolutions else None  # how many samples at a time are fastest; None: all
        tensors = [*backbone.parameters(), *backbone.buffers()]
        floating = [t.dtype for t in tensors if t.is_floating_point()]
        self.dtype = floating[0] if floating else torch.get_default_dtype()
        self.weight_dtype = master_dtype(self.dtype)
        self.constants = {
            name: tensor.detach()
            for name, tensor in [*backbone.named_parameters(), *backbone.named_buffers()]
            if name not in self.names and name not in self.statistics
        }

    def _set_modes(self, norm: Norm | None) -> None:
        """Make the backbone ready for evaluation and, where that is not the same, for local steps."""
        self.norm = norm
        self.batch_norms = batch_norms(self.backbone) if norm in ("personal", "averaged") else {}
        if norm in ("personal", "averaged") and not self.batch_norms:
            raise ModelError(
                f"norm={norm!r} is a rule for batch norm, and the backbone has none: leave it out; personal= names "
                "layers of any kind that stay with each client"
            )
        self.statistics = statistics_of(self.batch_norms)  # names of those that move
        # layers that do something else in training than in evaluation, by their names
        self.live = {**self.batch_norms, **dropouts(self.backbone)}
        one_mode = not self.live and norm != "frozen"
        self.evaluated = self.backbone if one_mode else evaluation_copy(self.backbone)
        self._function = Stateless(self.evaluated)
        if self.live:
            trained = training_copy(self.backbone, batch_statistics=bool(self.batch_norms))
            self._in_training = Stateless(trained)
            self._known_in_training = {n for n, _ in [*trained.named_parameters(), *trained.named_buffers()]}

    def __reduce__(self) -> tuple[Callable[[nn.Module, int], Model], tuple[nn.Module, int]]:
        """Made again where it is sent: locks and what belongs to threads cannot be."""
        return partial(Model, **self._options), (self.backbone, self.features)

    @property
    def _options(self) -> dict[str, Any]:
        """How it was made, but for the backbone and its features."""
        personal = self.source.get("personal")
        return {
            "head": self._make_head,
            "personal": personal,
            "frozen": self._frozen,
            "trained": self._trained,
            "norm": self.norm,
            "source": self.source,
        }

    @property
    def norm_names(self) -> frozenset[str]:
        """Names of the weights and statistics of batch norms whose statistics move."""
        everything = (*self.names, *self.statistics)
        return frozenset(name for name in everything if name.rpartition(".")[0] in self.batch_norms)

    @cached_property
    def opening(self) -> Opening | None:
        """The dense layer that its inputs meet first, if there is one."""
        found = Opening.of(self.evaluated)
        return found if found is not None and found.weight in self.names else None

    @cached_property
    def trunk(self) -> Trunk | None:
        """Its frozen beginning, if it has one, and the model that is left."""
        return Trunk.of(self)

    def with_backbone(self, backbone: nn.Module) -> Model:
        """Give a model with another backbone, of the same type of numbers, and the same rules for it."""
        made = Model(backbone, self.features, **{**self._options, "frozen": None, "trained": self.names})
        made.dtype, made.weight_dtype = self.dtype, self.weight_dtype
        return made

    @cached_property
    def dense(self) -> Dense | None:
        """What it is in closed form, if it has dense layers alone."""
        return Dense.of(self.evaluated) if self.dtype == self.weight_dtype else None

    def weights(self, only: Sequence[str] | None = None) -> Weights:
        """Copy theta as it is now, and the statistics that move; or some of them only."""
        names = (*self.names, *self.statistics) if only is None else only
        if not names:
            return {}
        tensors = {**dict(self.backbone.named_parameters()), **dict(self.backbone.named_buffers())}
        return {name: tensors[name].detach().to(self.weight_dtype, copy=True) for name in names}

    def shared_weights(self) -> Weights:
        """Copy what of theta is everybody's, as it is now."""
        return {name: w for name, w in self.weights().items() if name not in self.personal_names}

    def personal_weights(self) -> Weights:
        """Copy what of theta is each client's own, as it is now."""
        return self.weights(self.personal_names)

    def personal_part(self, weights: Weights) -> Weights:
        """Take what is each client's own because it was named so, a head only if that was."""
        own, head = self.personal_names, self.personal_head
        return {name: w for name, w in weights.items() if name in own or (head and is_head(name))}

    def head(self, outputs: int) -> Head:
        """Give the head for a number of outputs."""
        with self._lock:
            if outputs not in self._heads:
                if self._make_head is None:
                    self._heads[outputs] = LinearHead(self.features, outputs)
                else:
                    with seeded(0):
                        self._heads[outputs] = ModuleHead(self._make_head(self.features, outputs))
            return self._heads[outputs]

    def to(self, device: torch.device) -> Model:
        """Give the same model with its constants on a device."""
        if all(tensor.device == device for tensor in [*self.backbone.parameters(), *self.backbone.buffers()]):
            return self
        moved = copy.deepcopy(self.backbone).to(device)
        return Model(moved, self.features, **self._options)

    def prepare(self, x: Tensor, device: torch.device | None = None) -> Tensor:
        """Turn stored inputs into what the backbone takes: bytes become [0, 1], floats the model's own type.

        Images are laid out in memory as convolutions are fastest (channels last), which changes no number.
        """
        x = x.to(device)
        if x.dtype == torch.uint8:
            x = x.to(self.dtype).div_(255)
        elif x.is_floating_point():
            x = x.to(self.dtype)
        if x.dim() == 4 and x.shape[1] == self._channels:
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def activation_bytes(self, x: Tensor) -> int:
        """Measure, once, how much is held of each sample between the way through the backbone and the way back."""
        if self._activation_bytes is None:
            weights = {name: w.to(x.device) for name, w in self.weights().items()}
            for name in self.names:
                weights[name].requires_grad_()
            given = self.prepare(x)
            with Activations({**weights, **self.constants, "": given}) as held, torch.enable_grad():
                self.phi(weights, given)
            self._activation_bytes = max(1, -(-held.total // len(x)))
        return self._activation_bytes

    def phi(self, weights: Weights, x: Tensor) -> Tensor:
        """Compute the features of prepared inputs, (samples, M), in evaluation mode."""
        return self._function({**self.constants, **self._cast(weights)}, x)

    def phi_in_training(self, weights: Weights, x: Tensor, masks: torch.Generator | None) -> Tensor:
        """Compute the features of a whole batch as local steps see them; statistics among the weights move in place.

        Dropout draws from `masks`, or lets everything pass where there is no generator.
        """
        given = self._cast(weights)
        constants = {n: tensor for n, tensor in self.constants.items() if n in self._known_in_training}
        with drawing(masks):
            features = self._in_training({**constants, **given}, x)
        for name in self.statistics:
            if given[name] is not weights[name]:
                weights[name].copy_(given[name])
        return features

    def _cast(self, weights: Weights) -> Weights:
        given = {name: weights[name] for name in (*self.names, *self.statistics)}
        if self.dtype == self.weight_dtype:
            return given
        return {name: tensor.to(self.dtype) for name, tensor in given.items()}

    def with_own_statistics(self, weights: Weights) -> Weights:
        """Copy the statistics among some weights, so that they may move."""
        return {**weights, **{name: weights[name].clone() for name in self.statistics}}

    def check(self, x: Tensor) -> None:
        """Refuse a backbone whose features are not a function of theta and of each sample alone."""
        for name, module in self.backbone.named_modules():
            if (what := unruled(module, self.norm)) is not None:
                raise ModelError(
                    f"the backbone's {type(module).__name__} ({name}) is in training mode, where it {what}. Call "
                    "backbone.eval() first, or say what becomes of batch norm: Model(..., norm='frozen'), 'group', "
                    "'personal' or 'averaged'"
                )
        before = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()}
        with torch.no_grad(), torch.random.fork_rng():
            given, weights = self.prepare(x), self.weights()
            prepared = given.clone()
            features = _attempt(partial(self.phi, weights, prepared), x)
            if not isinstance(features, Tensor):
                raise ModelError(
                    f"the backbone must give one tensor, (samples, features), not a {type(features).__name__}"
                )
            if features.shape != (len(x), self.features):
                raise ModelError(
                    f"the backbone maps a batch of shape {tuple(x.shape)} to {tuple(features.shape)}, but "
                    f"features={self.features} promises ({len(x)}, {self.features})"
                )
            if features.dtype != self.dtype:
                raise ModelError(
                    f"the backbone's weights are {self.dtype}, but its features {features.dtype}: they must be of the "
                    f"same floating type, so cast neither"
                )
            if not torch.equal(prepared, given):
                raise ModelError(
                    "the backbone changed its inputs, which are used again: take layers without inplace=True, and "
                    "x * 2 for x.mul_(2)"
                )
            again = self.phi(weights, prepared)
            rows = torch.split(prepared, 1)
            alone = torch.cat([_attempt(partial(self.phi, weights, row), row) for row in rows])
        if not features.isfinite().all():
            raise ModelError(
                "the backbone's features are not finite: check its weights, and the scale of the inputs"
            )
        if not torch.equal(features, again):
            raise ModelError(
                "the backbone gave two different answers for the same batch: features are computed once per round "
                "and reused, so it must not draw at random. Call backbone.eval(), or take the randomness out"
            )
        if any(not torch.equal(buffer, before[name]) for name, buffer in self.backbone.named_buffers()):
            raise ModelError(
                "the backbone changed one of its buffers in a forward pass: call backbone.eval() first"
            )
        scale = features.abs().max().clamp(min=torch.finfo(features.dtype).tiny)
        if not (features - alone).abs().max() <= 1e-2 * scale:
            raise ModelError(
                "a sample's features depend on the other samples in its batch (batch statistics?): the backbone "
                "must treat every sample on its own. Call backbone.eval(), or use GroupNorm or LayerNorm"
            )
        self._check_training(weights, prepared)
        with torch.enable_grad(), torch.random.fork_rng():
            theta = {name: weights[name].requires_grad_() for name in self.names}
            if theta and not self.phi({**weights, **theta}, prepared[:1]).requires_grad:
                raise ModelError(
                    "the backbone's features have no gradient in its parameters, so that they cannot be trained: take "
                    "out detach(), no_grad() or NumPy, or freeze them with requires_grad_(False)"
                )

    def _check_training(self, weights: Weights, x: Tensor) -> None:
        """Refuse a backbone that draws at random in local steps otherwise than by layers of dropout."""
        if not self.live:
            return
        with torch.no_grad(), torch.random.fork_rng():
            once, again = (
                self.phi_in_training(self.with_own_statistics(weights), x, torch.Generator().manual_seed(0))
                for _ in range(2)
            )
        if not torch.equal(once, again):
            raise ModelError(
                "in training mode the backbone draws at random by itself: masks must be a function of the seed, the "
                "round and the client, so take layers of nn.Dropout for it, or call backbone.eval()"
            )

    def fingerprint(self) -> str:
        """Digest names, shapes and present values of theta, frozen parameters and buffers, and which of them are theta.

        It tells one starting point from another, and one division into shared and personal weights from another.
        """
        kept = [*self.personal_names, *([HEAD] if self.personal_head else [])]
        drops = [f"{name}={layer.p}" for name, layer in self.live.items() if name not in self.batch_norms]
        rules = {"personal": kept, "moving": self.statistics, "dropout": drops}
        said = [word for rule, names in rules.items() if names for word in (f"| {rule}", *names)]
        facts = " ".join([*self.names, *said])
        return digest({**self.constants, **self.weights()}, facts=facts)

    @cached_property
    def base(self) -> str:
        """Digest of what is never trained and never sent, so that all must have the same; empty: there is nothing.

        Batch norm's constants alone are no base: they come from the settings, as everybody's first weights do.
        """
        held = {name: tensor for name, tensor in self.constants.items() if name in self.held}
        return digest({**held, **self.constants}) if held else ""

    def personal(self, weights: Weights, outputs: int, classes: Tensor) -> PersonalModel:
        """Build the module a client takes home: backbone and head with these weights."""
        backbone = copy.deepcopy(self.backbone).cpu()
        tensors = {**dict(backbone.named_parameters()), **dict(backbone.named_buffers())}
        with torch.no_grad():
            for name in (*self.names, *self.statistics):
                tensors[name].copy_(weights[name])
        head = self.head(outputs).module({name: tensor.cpu() for name, tensor in weights.items()})
        return PersonalModel(backbone, head.to(self.dtype), classes, self.prepare)


class PersonalModel(nn.Module):
    """A client's own model: raw inputs in, outputs (logits or predictions) out."""

    def __init__(
        self, backbone: nn.Module, head: nn.Module, classes: Tensor, prepare: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.register_buffer("classes", classes)
        self._prepare = prepare
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Give one score per class in the order of `classes`, or the predicted numbers in regression."""
        outputs: Tensor = self.head(self.backbone(self._prepare(x)))
        return outputs

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Give the predicted classes by their ids (-1: an output of no class), or numbers in regression."""
        outputs: Tensor = self(x)
        classes = self.get_buffer("classes")
        if len(classes) == 0:
            return outputs
        named: Tensor = functional.pad(classes, (0, outputs.shape[1] - len(classes)), value=-1)
        return named[outputs.argmax(dim=1)]

    @torch.no_grad()
    def probabilities(self, x: Tensor) -> Tensor:
        """Give the probability of every class, (samples, classes), in the order of `classes`.

        They sum to one, but for what goes to outputs of no class.
        """
        classes = self.get_buffer("classes")
        if len(classes) == 0:
            raise ModelError("a regression has no probabilities: take predict(x), the numbers themselves")
        outputs: Tensor = self(x)
        return torch.softmax(outputs, dim=1)[:, : len(classes)]


def _attempt(forward: Callable[[], Tensor], x: Tensor) -> Tensor:
    try:
        return forward()
    except Exception as error:  # whatever the user's module does
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"the backbone cannot take this federation's inputs, a batch of shape {tuple(x.shape)}: {reason}"
        ) from error
