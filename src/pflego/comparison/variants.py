"""What is compared: methods, and variants of them, by names such as fedavg, module:Class or fedavg+fine_tune=5."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field

from pflego.algorithms.registry import find_method, methods, spelling
from pflego.errors import SettingError


@dataclass(frozen=True)
class Variant:
    """A method, and settings of its own."""

    method: str
    settings: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> Variant:
        """Read a name: a method's, then +setting=value as often as needed; none: not given, though others have it.

        >>> Variant.of("fedavg+fine_tune=5+fine_tune_part=head").settings
        {'fine_tune': 5, 'fine_tune_part': 'head'}
        >>> str(Variant.of("pflego+batch_size=none"))
        'pflego+batch_size=none'
        """
        method, *changes = (part.strip() for part in name.split("+"))
        settings: dict[str, object] = {}
        for change in changes:
            key, equals, text = (part.strip() for part in change.partition("="))
            if not (key and equals and text):
                raise SettingError(
                    f"{name!r} is no variant of a method: write fedavg+fine_tune=5, with a value for each setting"
                )
            settings[key.replace("-", "_")] = _value(text)
        return cls(spelling(find_method(method)), settings)

    def __str__(self) -> str:
        """Give its name, spelled in one way."""
        return "+".join([self.method, *(f"{key}={_text(value)}" for key, value in self.settings.items())])

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^\w.+=-]", "-", str(self))


def choose(names: str) -> list[str]:
    """Read a list of methods and variants, `all` for all methods of this package.

    >>> choose("pflego,fedavg,FedAvg + fine-tune=5")
    ['pflego', 'fedavg', 'fedavg+fine_tune=5']
    """
    chosen = list(methods()) if names == "all" else names.split(",")
    return list(dict.fromkeys(str(Variant.of(name)) for name in chosen))


def _value(text: str) -> object:
    """Read a value as a settings file has it, or none; what is no such value is a text."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _text(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
