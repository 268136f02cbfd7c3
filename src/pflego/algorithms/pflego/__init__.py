"""PFLEGO: algorithm.py is the paper's page; rates, kinds of heads and several passes per round stand beside it."""

from pflego.algorithms.pflego.algorithm import PFLEGO

__all__ = ["PFLEGO"]
