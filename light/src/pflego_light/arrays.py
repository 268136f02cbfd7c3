"""The one data structure: a flat dictionary of named arrays."""

from __future__ import annotations

from math import fsum, isfinite, sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.generic]
Floats: TypeAlias = npt.NDArray[np.float32]
Weights: TypeAlias = dict[str, Floats]

HEAD = "head"


def is_finite(weights: Weights) -> bool:
    """Tell whether no array holds an infinity or a NaN."""
    return all(isfinite(float(array.sum())) or bool(np.isfinite(array).all()) for array in weights.values())


def norm(weights: Weights) -> float:
    """Give the Euclidean norm of all arrays together, in float64."""
    return sqrt(fsum(float(np.square(array, dtype=np.float64).sum()) for array in weights.values()))
