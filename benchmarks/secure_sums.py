"""Bytes and CPU seconds of a secure sum by the number of clients: `python -m benchmarks.secure_sums`.

All clients and the server in one process, one after the other, with real cryptography; a tenth of the clients is lost
before their masked contributions. Bytes are those of the messages' contents, one client's. Seconds are this process's
CPU time, a client's and the server's, without the clients' own work.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tests.support.secure_sums import Sum

from pflego.codec import encode
from pflego.weights import Weights

CLIENTS = (5, 10, 20, 50)
VALUES = 157_000  # the weights of `mlp` for MNIST
FIGURES = 14


@dataclass(frozen=True)
class Cost:
    """What a sum costs."""

    clients: int
    bytes_up: int  # of one client
    bytes_down: int  # beside the shared weights
    plain_bytes: int  # of its contribution in float32
    client_seconds: float
    server_seconds: float


def measure(clients: int, values: int = VALUES) -> Cost:
    """Play a sum."""
    generator = np.random.default_rng(0)
    rows, figures = generator.normal(size=(clients, values)), generator.normal(size=(clients, FIGURES))
    lost = set(range(clients // 10))
    began = time.process_time()
    one = Sum.of(rows, figures)
    one.share_keys()
    one.mask_all(rows, figures, lost=lost)
    one.reveal_all()
    working = (time.process_time() - began) / clients
    began = time.process_time()
    total, _ = one.result()
    serving = time.process_time() - began
    assert np.allclose(total, rows[one.active].sum(axis=0), atol=1e-7 * one.layout.bound)
    last = clients - 1
    octets = torch.from_numpy(np.frombuffer(one.layout.pack(one.masked[last]), np.uint8).copy())
    sent = [
        _size(asdict(one.parties[last].keys)),
        _size(asdict(one.shared[last])),
        _size({}, {"masked": octets}),
        _size(asdict(one.revealed[last])),
    ]
    received = [_size(one.roster.facts), _size(one.tokens_for(last)), _size([one.active, one.gone])]
    return Cost(clients, sum(sent), sum(received), 4 * values, working, serving)


def _size(facts: object, tensors: Weights | None = None) -> int:
    return len(encode(tensors or {}, {"facts": facts}))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure_sums", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("secure-sums.json"), help="where to write the JSON")
    arguments = parser.parse_args()
    costs = [measure(clients) for clients in CLIENTS]
    table = Table("clients", "kB up", "kB down beside the weights", "client s", "server s")
    for cost in costs:
        table.add_row(
            str(cost.clients),
            f"{cost.bytes_up / 1000:.0f}",
            f"{cost.bytes_down / 1000:.0f}",
            f"{cost.client_seconds:.2f}",
            f"{cost.server_seconds:.1f}",
        )
    Console().print(table)
    arguments.out.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")


if __name__ == "__main__":
    main()
