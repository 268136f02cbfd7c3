"""PFLEGO: algorithm.py is the paper's page; beside it stand rates, kinds of heads, mini-batches and several passes."""

from pflego.algorithms.pflego.algorithm import PFLEGO

__all__ = ["PFLEGO"]
