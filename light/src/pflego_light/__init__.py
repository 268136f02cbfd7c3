"""A client of a federation without torch: a kit's graphs for the backbone, closed forms for the head.

>>> from pflego_light import Client, Data, Federation, Kit          # doctest: +SKIP
>>> client = Client(Kit.read("kit"), Data.read("ward-3", "own.npz"), federation)   # doctest: +SKIP
>>> done = client.work(now, shared, client.first())                 # doctest: +SKIP
"""

from pflego_light.client import Client, Outcome
from pflego_light.data import Data
from pflego_light.errors import FolderError, LightError, MessageError, SettingError
from pflego_light.kit import Kit
from pflego_light.round import Emphasis, Federation, Round

__all__ = [
    "Client",
    "Data",
    "Emphasis",
    "Federation",
    "FolderError",
    "Kit",
    "LightError",
    "MessageError",
    "Outcome",
    "Round",
    "SettingError",
]
