"""The personal part of a model, and the tau cheap steps on it."""

from pflego.learning.heads.base import HEAD, Head, HeadGradient, HeadInit, is_head
from pflego.learning.heads.bound import HessianBound
from pflego.learning.heads.linear import LinearHead, plain_loops
from pflego.learning.heads.module import ModuleHead
from pflego.learning.heads.rules import Descent

__all__ = [
    "HEAD",
    "Descent",
    "Head",
    "HeadGradient",
    "HeadInit",
    "HessianBound",
    "LinearHead",
    "ModuleHead",
    "is_head",
    "plain_loops",
]
