"""Every random draw as a function of (seed, purpose, round, client), to the same bits as torch's generator.

torch draws from a Mersenne twister, and so does NumPy's RandomState: only what is made of the draws differs.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt


class Generator:
    """The draws of one purpose."""

    def __init__(self, seed: int, purpose: str, *, round_number: int = 0, client: object = "") -> None:
        key = "\0".join([str(seed), purpose, str(round_number), str(client)])
        entropy = int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "big") >> 1
        twister = np.random.MT19937()
        twister._legacy_seeding((entropy >> 64) & 0xFFFFFFFF)
        self._twister = twister

    def _raw(self, count: int) -> npt.NDArray[np.uint64]:
        return np.asarray(self._twister.random_raw(count), dtype=np.uint64)

    def uniform(self, rows: int, columns: int) -> npt.NDArray[np.float64]:
        """Draw from [0, 1), as torch.rand does in float64."""
        drawn = self._raw(2 * rows * columns).reshape(-1, 2)
        whole = (drawn[:, 0] << np.uint64(32)) | drawn[:, 1]
        return ((whole & np.uint64(2**53 - 1)).astype(np.float64) / 2**53).reshape(rows, columns)

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Draw an order, as torch.randperm does."""
        order = list(range(count))
        drawn = self._raw(count - 1).tolist() if count > 1 else []
        for place, draw in enumerate(drawn):
            other = place + draw % (count - place)
            order[place], order[other] = order[other], order[place]
        return np.array(order, dtype=np.int64)
