"""What an algorithm is: what a client does in a round, and what the server does with the contributions.

    shared --> client_update(now, shared, state_i, data_i) --> state_i', contribution_i
               weights, aggregation                        --> aggregate
               server_step(now, shared, server, aggregate) --> shared', server'

Both are functions of their arguments. An algorithm knows no engine, no file, no weights and no rule of aggregation; its
fields are its hyperparameters, checked when it is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch

from pflego.algorithms.statistics import averaged
from pflego.declaration import check_fields, declared
from pflego.errors import ModelError, SettingError, UserError
from pflego.exchange.round import Round, Update
from pflego.exchange.weighting import Kind
from pflego.federation.roster import ClientId
from pflego.learning.heads import is_head
from pflego.learning.heads.fit import fit_head
from pflego.learning.model import Model
from pflego.learning.problem import Labels, Problem
from pflego.weights import Weights, is_finite, plus, to

# what a client's model is: the shared one; that one, fine-tuned; a shared part and a part of its own; an own model near
# the shared one, or mixed with it; one made of those of clients like it; or its own alone
Family: TypeAlias = Literal["one model", "fine-tuned", "split", "mixed", "similar", "alone", "other"]
# what a model may ask of a method beyond the usual: that named parts of the backbone stay with each client, and that
# local steps go through it in training mode
Ability: TypeAlias = Literal["personal parts", "training mode"]
# where a method says what becomes of weights
_WORK = {"init_shared", "init_state", "client_update", "server_step", "personal", "adapt", "descend"}


@dataclass(frozen=True)
class Algorithm(ABC):
    """The interface of a method. What is not overridden does what most methods do."""

    weights: ClassVar[Kind] = (
        "normalised"  # contributions are averaged; "unbiased": they estimate a sum over all
    )
    exchanges: ClassVar[int] = 1  # how often clients and server speak to each other in a round
    # whether the server keeps sum_i a_i x_i over all clients from aggregates: these must be the same to it
    needs_equal_chances: ClassVar[bool] = False
    # whether the server divides what is summed by a count that is summed with it
    divides_by_counts: ClassVar[bool] = False
    # what it can do beyond the usual; a class that changes what is done says it anew
    abilities: ClassVar[frozenset[Ability]] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        """Its name in settings and on the command line."""
        return type(self).__name__.lower()

    @property
    def family(self) -> Family:
        """The kind of personalisation, by which tables of many methods are grouped."""
        return "other"

    @property
    def labels(self) -> Labels:
        """What the outputs of its models stand for: each client's own classes, unless it shares a head."""
        return "own"

    @property
    def uses_shared_model(self) -> bool:
        """Whether every client uses the shared weights just as they are."""
        return False

    @property
    def follows_objectives(self) -> bool:
        """Whether clients send the gradient of their full loss, and multiply it by `now.emphasis` at that loss."""
        return False

    @property
    def largest(self) -> frozenset[str]:
        """Names in contributions of which the server takes the largest; all others are added up by their weights."""
        return frozenset()

    def exact(self, name: str) -> bool:
        """Tell whether a name in contributions is of a statistic, such as one that the server divides by.

        It is no gradient and no difference, so it is sent as it is, and never compressed.
        """
        return name in self.largest

    def sent_alone(self, name: str) -> bool:
        """Tell whether the server gets contributions of a name one by one, as `name` of each client, and no sum.

        `server_step` finds them with `exchange.round.by_client`. No rule of aggregation sees them.
        """
        return False

    def settings(self) -> dict[str, object]:
        """Give its hyperparameters, by the names of its arguments."""
        values = {name: getattr(self, one.parameter) for name, one in declared(type(self)).items()}
        return {name: getattr(v, "__qualname__", repr(v)) if callable(v) else v for name, v in values.items()}

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """Give the server's first weights: theta_0, but for what is personal.

        `outputs` are those of the whole federation.
        """
        return model.shared_weights()

    @abstractmethod
    def init_state(self, problem: Problem, seed: int) -> Weights:
        """Give a client's state the first time it is visited."""

    @abstractmethod
    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Do a client's work in a round."""

    def group_update(
        self,
        turns: Sequence[Round],
        shared: Weights,
        states: Sequence[Weights],
        problems: Sequence[Problem],
        weights: Sequence[float],
    ) -> tuple[list[Update], Weights]:
        """Do the work of several small clients at once, for the sake of speed, where a method can.

        Gives what each has done, without contributions, and the sum of weight times contribution.
        """
        raise NotImplementedError

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Turn combined contributions into new shared weights and server state: differences are added.

        A method with a rule of its own for weights leaves running statistics to `statistics.averaged`.
        """
        if foreign := sorted(aggregate.keys() - shared.keys()):
            raise SettingError(
                f"{self.name} sends {', '.join(foreign)}, which are no shared weights: its server_step must say what "
                "becomes of them"
            )
        moved = plus({name: shared[name] for name in aggregate}, aggregate)
        return {**shared, **moved, **averaged(shared, aggregate)}, server

    def answers(
        self, now: Round, shared: Weights, server: Weights, clients: Sequence[ClientId]
    ) -> Mapping[ClientId, Weights]:
        """Give what the server has for single clients: each sees it among the shared weights."""
        return {}

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Give the weights of a client's own model: the shared ones, overlaid with its own."""
        return {**shared, **state}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Give a client's state as a participant's is when it is judged: after its local steps, here on these weights.

        What it holds lies over the shared weights in `personal`, so it may hold a part of a model that no state has.
        """
        return state

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Give the state of a client that comes when the others have trained, from its first: made ready for use.

        A head is fitted to the shared backbone, in at most `steps` steps, or until it is done; any other state goes
        the way of `adapt`. Who keeps nothing has nothing to make ready.
        """
        if not state:
            return state
        if all(is_head(name) for name in state):
            return fit_head(problem, state, problem.forward(shared).features, steps=steps)
        return self.adapt(shared, state, problem)

    def check_model(self, model: Model) -> None:
        """Refuse a model that asks for what the method cannot do."""
        if model.live and "training mode" not in abilities(type(self)):
            name, layer = next(iter(model.live.items()))
            out = (
                f"norm='frozen' (weights may still be personal: personal={name!r}) or norm='group'"
                if name in model.batch_norms
                else "backbone.eval() before Model(...)"
            )
            raise ModelError(
                f"the backbone's {type(layer).__name__} ({name}) is in training mode, where it does something else "
                f"than in evaluation, and {self.name} has no rule for that: its features must depend on the weights "
                f"and the sample alone. The way out: {out}, or {_able('training mode')}"
            )
        if (model.personal_names or model.personal_head) and "personal parts" not in abilities(type(self)):
            kept = ", ".join([*model.personal_names, *(["head"] if model.personal_head else [])])
            raise ModelError(
                f"{self.name} has no rule for personal parts of a model ({kept}): leave them out, or take "
                f"{_able('personal parts')}"
            )

    def warn(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> str | None:
        """Say what looks wrong before the first round, seen from one of its clients."""
        return None


def newcomer(
    algorithm: Algorithm, shared: Weights, problem: Problem, *, seed: int, steps: int | None = None
) -> tuple[Weights, Weights]:
    """Give the state of a client that comes when others have trained: its first one, and that one made ready.

    Whoever comes late gets it from here: by `Population`, by `Run.join`, at a site of its own. steps are those of
    `welcome`.
    """
    first = to(algorithm.init_state(problem, seed), problem.device)
    state = algorithm.welcome(shared, first, problem, steps=steps)
    if not is_finite(state):
        raise UserError(
            f"client {problem.client.id!r} cannot join: its head did not stay finite; check its data's scale"
        )
    return first, to(state, torch.device("cpu"))


def abilities(method: type[Algorithm]) -> frozenset[Ability]:
    """Give what the class that says what clients and server do can do beyond the usual.

    A method that changes any of it has not said that it still can, whatever it inherits.
    """
    for kind in method.__mro__:
        if "abilities" in vars(kind):
            found: frozenset[Ability] = vars(kind)["abilities"]
            return found
        if _WORK & vars(kind).keys():
            return frozenset()
    return frozenset()


def _able(ability: Ability) -> str:
    """Say in words which of this package's methods can: most, so that it names those that cannot."""
    from pflego.algorithms.registry import methods  # which needs this module

    unable = [name for name, kind in methods().items() if ability not in abilities(kind)]
    return (
        f"any method of this package but {' and '.join(unable)}" if unable else "any method of this package"
    )


def works_in_groups(algorithm: Algorithm) -> bool:
    """Tell whether the class that defines `client_update` also defines how several clients do it at once.

    A method that changes what a client does has not said it, whatever it inherits.
    """
    for kind in type(algorithm).__mro__:
        if "group_update" in vars(kind):
            return kind is not Algorithm
        if "client_update" in vars(kind):
            return False
    return False
