"""PFLEGO: algorithm.py is the paper's page; rates, the common head and the safeguard stand beside it."""

from pflego.algorithms.pflego.algorithm import PFLEGO

__all__ = ["PFLEGO"]
