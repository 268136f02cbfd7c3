"""Parts of a backbone by name: of a parameter, of a module, or the beginning of a dotted name.

A module's name may stand anywhere in a dotted one; a number, as nn.Sequential gives it, only at the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from pflego.errors import ModelError
from pflego.learning.heads import HEAD


def part_names(personal: str | Sequence[str] | None) -> tuple[str, ...]:
    """Give the names of parts, from a list or from a text that has commas between them.

    >>> part_names("norm, head"), part_names(["norm"]), part_names(None)
    (('norm', 'head'), ('norm',), ())
    """
    if personal is None:
        return ()
    listed = personal.split(",") if isinstance(personal, str) else personal
    if not isinstance(listed, Sequence) or not all(isinstance(name, str) and name.strip() for name in listed):
        raise ModelError(f"personal must be names of a backbone's parts, or head, not {personal!r}")
    return tuple(dict.fromkeys(name.strip() for name in listed))


def belongs(name: str, part: str) -> bool:
    """Tell whether a parameter's dotted name is in a part.

    >>> belongs("body.norm.weight", "norm"), belongs("body.norm.weight", "body.norm"), belongs("body.0.bias", "bod")
    (True, True, False)
    """
    return name == part or name.startswith(f"{part}.") or (not part.isdigit() and part in name.split("."))


def resolve(parts: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Give those of some names that are in one of the parts, and refuse a part that has none of them."""
    parts = [part for part in parts if part != HEAD]
    for part in parts:
        if not any(belongs(name, part) for name in names):
            modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise ModelError(
                f"personal: the backbone trains nothing that is called {part!r}; its parts are "
                f"{', '.join([*modules, HEAD])}"
            )
    return tuple(name for name in names if any(belongs(name, part) for part in parts))
