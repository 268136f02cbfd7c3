"""The methods: one page each, which opens with its equations. A file with a method in it is found by itself."""

from pflego.algorithms.base import Algorithm
from pflego.algorithms.registry import find_method, method, methods, spelling
from pflego.exchange.round import Round, Update

__all__ = ["Algorithm", "Round", "Update", "find_method", "method", "methods", "spelling"]
