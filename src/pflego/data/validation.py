"""A part of every client's own training data, set aside to choose settings by: the test data are never looked at."""

from __future__ import annotations

import numpy as np

from pflego.errors import DataError
from pflego.federation.roster import Client, Federation
from pflego.randomness import numpy_generator


def hold_out(
    federation: Federation, *, share: float = 0.2, seed: int = 0, by_class: bool = True
) -> Federation:
    """Give the same clients with a share of their training samples in the place of their test samples.

    by_class: the share is taken of every class, and every class a client has keeps at least one sample to learn from.
    Otherwise it is taken of all samples alike, as test samples come: a class that is rare may be left with none. Then
    every client of two samples or more has one held out.

    >>> import pflego
    >>> hold_out(pflego.load("digits", clients=20), share=0.25)
    Federation(20 clients, 1094 training samples, 10 classes)
    """
    if not 0 < share < 1:
        raise DataError(f"the share held out must lie between 0 and 1, not {share!r}")
    return Federation(
        [_held_out(client, share, seed, by_class) for client in federation],
        source=federation.source,
        schema=federation.schema,
    )


def _held_out(client: Client, share: float, seed: int, by_class: bool) -> Client:
    labels = client.y_train.numpy()
    kinds = labels if by_class and labels.dtype.kind in "iu" else np.zeros(len(labels), int)
    least = 0 if by_class or len(labels) < 2 else 1
    generator = numpy_generator(seed, "validation", client=client.id)
    held = np.concatenate(
        [
            (mine := generator.permutation(np.flatnonzero(kinds == kind)))[
                : max(least, int(len(mine) * share))
            ]
            for kind in np.unique(kinds)
        ]
    )
    kept = np.setdiff1d(np.arange(len(labels)), held)
    x, y = client.x_train, client.y_train
    return Client(client.id, x[kept], y[kept], x[held], y[held], weights=client.weights_of(kept))
