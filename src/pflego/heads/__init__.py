"""The personal part of a model, and the tau cheap steps on it."""

from pflego.heads.base import HEAD, Head, HeadGradient, HeadInit, check_head_init, is_head
from pflego.heads.descent import Descent
from pflego.heads.linear import LinearHead, plain_loops
from pflego.heads.module import ModuleHead

__all__ = [
    "HEAD",
    "Descent",
    "Head",
    "HeadGradient",
    "HeadInit",
    "LinearHead",
    "ModuleHead",
    "check_head_init",
    "is_head",
    "plain_loops",
]
