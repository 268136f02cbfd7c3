"""FedPAC (Xu et al., 2023): features are aligned, heads are combined with those of clients like it. Round t, client i:

    (theta_i, W_i) <- (theta_t, V_i)
    h_ic, v_i       of the features of theta_t, see below
    tau - s times   W_i <- W_i - beta_h grad_W l_i(W_i, theta_i)
    s times         theta_i <- theta_i - beta grad_theta [ l_i(W_i, theta_i) + mu/M mean_x |phi(x) - P_y|^2 ]
    sent            theta_i - theta_t, class sums of phi(x; theta_i) and counts; each by itself, W_i - V_i, h_i and v_i
    server          theta_{t+1} = theta_t + sum_i N_i (theta_i - theta_t) / sum_i N_i,  P_c the mean of phi over class c
                    V_i = sum_j a_ij W_j,  a_i = argmin over a >= 0, sum a = 1 of
                          sum_j a_j^2 v_j + sum_c |h_ic - sum_j a_j h_jc|^2

over the clients j of the cohort that i was in. p_ic is the share of class c, h_ic = p_ic times the mean feature of the
class, and v_i = (mean_x |phi(x)|^2 - sum_c |h_ic|^2) / N_i: the variance of a head and its bias at another client, so
that heads come from clients with the same classes and features. All heads have an output for every class. Where samples
have weights, N_i in v_i is the number of equal ones that would tell as much.

V_i reaches client i when it next takes part; until then its model has the head that it trained itself, W_i. V_i is
W_0, the same for all, before the first time. tau is `steps`, s `body_steps`, beta `client_lr`, beta_h `head_lr`. The
authors have one epoch for the head at rate 0.1 and 5 for the backbone at 0.01, batches of 50, momentum 0.5, decay
5e-4, mu 1. They pull a class that has no mean yet to the client's own; here it is left alone.

Parts of the backbone that are personal learn with theta_i, and stay. Its steps are taken in training mode; features for
the head, for h, v and the class sums are of evaluation mode. Running statistics of batch norm are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pflego.algorithms import class_means
from pflego.algorithms.base import Family
from pflego.algorithms.fedrep import FedRep
from pflego.algorithms.registry import method
from pflego.algorithms.simplex import best_combination
from pflego.algorithms.statistics import averaged
from pflego.declaration import AutoRate, Strength
from pflego.errors import ModelError
from pflego.exchange.round import Round, Update, by_client, of_client
from pflego.federation.roster import ClientId
from pflego.learning.heads import is_head
from pflego.learning.model import Model
from pflego.learning.problem import Labels, Problem
from pflego.learning.weighted import average, effective_samples
from pflego.randomness import torch_generator
from pflego.weights import Weights, minus, plus, weighted_sum

_ALONE = "own/"  # how names begin that the server does not combine
_BIAS, _VARIANCE = "own/bias", "own/variance"  # h_i, (classes, M), and v_i


@method
class FedPAC(FedRep):
    """A shared backbone with aligned features, and heads that are combined for every client.

    Parameters
    ----------
    mu
        The strength of the pull of features to the mean of their class.
    head_lr
        beta_h, the rate of the head's steps; client_lr if not given.
    """

    abilities = frozenset({"personal parts", "training mode"})
    divides_by_counts = True

    mu: Strength = 1.0
    head_lr: AutoRate | None = None

    @property
    def family(self) -> Family:
        """A head is made of those of clients like it."""
        return "similar"

    @property
    def labels(self) -> Labels:
        """Heads can be combined where an output means the same everywhere."""
        return "global"

    def check_model(self, model: Model) -> None:
        """Refuse a head that stays at home: heads are combined."""
        super().check_model(model)
        if model.personal_head:
            raise ModelError(
                "fedpac combines the heads of clients: leave head out of personal, or take FedRep, which keeps them"
            )

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0, W_0, and means that are not known yet."""
        head = self._first_head(model, outputs, seed)
        return {**model.shared_weights(), **head, **class_means.unknown_means(model, outputs)}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_0, and what of the backbone is personal."""
        head = self._first_head(problem.model, problem.outputs, seed)
        return {**head, **problem.model.personal_weights()}

    def exact(self, name: str) -> bool:
        """Means of classes are ratios, and heads are combined by statistics of the moment."""
        return name in (*class_means.SENT, _BIAS, _VARIANCE) or super().exact(name)

    def sent_alone(self, name: str) -> bool:
        """Heads and their statistics are what the server combines for each client, by itself."""
        return name.startswith(_ALONE)

    def answers(
        self, now: Round, shared: Weights, server: Weights, clients: Sequence[ClientId]
    ) -> Mapping[ClientId, Weights]:
        """V_i, of those who have one."""
        heads = {client: _head_of(server, client, shared) for client in clients}
        return {client: head for client, head in heads.items() if head}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Train head and backbone in turn; send the backbone's way, class sums, and the head's way by itself."""
        received = {name: w for name, w in shared.items() if is_head(name)}
        start = self.whole(shared, state, problem)
        before = problem.features(start)
        weights = self._in_turn(start, problem, before)
        after = problem.features(weights)
        classes = len(shared[class_means.KNOWN])
        trained = {name: weights[name] for name in received}
        theta = {name: w for name, w in weights.items() if name in shared and name not in received}
        head_way = {_ALONE + name: way for name, way in minus(trained, received).items()}
        sent = {
            **minus(theta, shared),
            **class_means.class_sums(problem, after, classes),
            **head_way,
            **_statistics(problem, before, classes),
        }
        loss = problem.head_loss(weights, after)
        kept = {**trained, **self.own_part(problem.model, weights)}
        return Update(kept, sent, loss=loss, model=weights)

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Average backbones, take the means of classes, combine heads."""
        theta = {name: shared[name] for name in aggregate if name in shared}
        moved = {**shared, **plus(theta, aggregate), **averaged(shared, aggregate)}
        moved |= class_means.updated(shared, aggregate)
        cohort = by_client(aggregate)
        heads = []
        for client, sent in cohort.items():
            received = _head_of(server, client, shared) or {n: w for n, w in shared.items() if is_head(n)}
            heads.append({name: w + sent[_ALONE + name].to(w) for name, w in received.items()})
        shares = head_shares(
            torch.stack([sent[_BIAS].double().flatten() for sent in cohort.values()]),
            torch.stack([sent[_VARIANCE].double() for sent in cohort.values()]),
        )
        combined: Weights = {}
        for client, own in zip(cohort, shares.tolist(), strict=True):
            head = weighted_sum(zip(own, heads, strict=True))
            combined |= {of_client(name, client): w for name, w in head.items()}
        return moved, {**server, **combined}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Train the head on cached features, then the backbone, as in a round that begins with this head."""
        start = {**shared, **state}
        return self._in_turn(start, problem, problem.features(start))

    def _in_turn(self, start: Weights, problem: Problem, features: Tensor) -> Weights:
        """Train the head, then the backbone; give both."""
        model, duration = problem.model, self.duration - self.body
        weights = {name: start[name] for name in (*model.names, *model.statistics)}
        weights |= {name: w for name, w in start.items() if is_head(name)}
        weights |= self.head_steps(problem, weights, duration, rate=self.head_lr, features=features)
        pull = class_means.pull(start, problem, self.mu)
        return self.descend(problem, weights, duration=self.body, only=problem.model.names, on_features=pull)

    def _first_head(self, model: Model, outputs: int, seed: int) -> Weights:
        generator, head = torch_generator(seed, "common head"), model.head(outputs)
        return head.init(self.start_of(head), generator, model.weight_dtype)


def head_shares(biases: Tensor, variances: Tensor) -> Tensor:
    """Give a_ij, one row per client, of h_i in rows, (clients, classes * M), and v_i, (clients,)."""
    products = biases @ biases.T
    rows = []
    for i in range(len(biases)):
        # <h_i - h_j, h_i - h_k>, (clients, clients)
        distances = products[i, i] - products[i][:, None] - products[i][None, :] + products
        rows.append(best_combination(torch.diag(variances) + distances))
    return torch.stack(rows)


def _statistics(problem: Problem, features: Tensor, classes: int) -> Weights:
    """h_i and v_i of a client's features."""
    bias = class_means.class_sums(problem, features, classes)[class_means.SUMS]
    square = average(features.to(bias).square().sum(dim=1), problem.weights)
    variance = (square - bias.square().sum()) / effective_samples(problem.samples, problem.weights)
    return {_BIAS: bias, _VARIANCE: variance.clamp(min=0)}


def _head_of(server: Weights, client: ClientId, shared: Weights) -> Weights:
    names = [name for name in shared if is_head(name)]
    return {name: server[at] for name in names if (at := of_client(name, client)) in server}
