"""Parts of a backbone by name: of a parameter, of a module, or the beginning of a dotted name.

A module's name may stand anywhere in a dotted one; a number, as nn.Sequential gives it, only at the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from pflego.errors import ModelError
from pflego.learning.heads import HEAD

ALL = "all"


def part_names(given: str | Sequence[str] | None, what: str = "personal") -> tuple[str, ...]:
    """Give the names of parts, from a list or from a text that has commas between them.

    what: the setting that they were given for.

    >>> part_names("norm, head"), part_names(["norm"]), part_names(None)
    (('norm', 'head'), ('norm',), ())
    """
    if given is None:
        return ()
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not all(isinstance(name, str) and name.strip() for name in listed):
        head = ", or head" if what == "personal" else ""
        raise ModelError(f"{what} must be names of a backbone's parts{head}, not {given!r}")
    return tuple(dict.fromkeys(name.strip() for name in listed))


def belongs(name: str, part: str) -> bool:
    """Tell whether a parameter's dotted name is in a part.

    >>> belongs("body.norm.weight", "norm"), belongs("body.norm.weight", "body.norm"), belongs("body.0.bias", "bod")
    (True, True, False)
    """
    return name == part or name.startswith(f"{part}.") or (not part.isdigit() and part in name.split("."))


def resolve(parts: Sequence[str], names: Sequence[str], what: str = "personal") -> tuple[str, ...]:
    """Give those of some names that are in one of the parts, and refuse a part that has none of them."""
    with_head = what == "personal"
    parts = [part for part in parts if not (with_head and part == HEAD)]
    for part in parts:
        if not any(belongs(name, part) for name in names):
            modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise ModelError(
                f"{what}: the backbone trains nothing that is called {part!r}; its parts are "
                f"{', '.join([*modules, *([HEAD] if with_head else [])])}"
            )
    return tuple(name for name in names if any(belongs(name, part) for part in parts))


def trained_names(
    names: Sequence[str], frozen: str | Sequence[str] | None, trained: str | Sequence[str] | None
) -> tuple[str, ...]:
    """Give those of a backbone's names that are trained: all but the frozen parts, or the trained ones alone.

    >>> names = ["body.0.weight", "body.1.weight", "norm.weight"]
    >>> trained_names(names, "body.0, norm", None), trained_names(names, None, "norm")
    (('body.1.weight',), ('norm.weight',))
    >>> trained_names(names, "all", None)
    ()
    """
    if frozen is not None and trained is not None:
        raise ModelError("frozen= names what is not trained, trained= what alone is: give one of them")
    if trained is not None:
        return resolve(part_names(trained, "trained"), names, "trained")
    parts = part_names(frozen, "frozen")
    if ALL in parts:
        return ()
    held = set(resolve(parts, names, "frozen"))
    return tuple(name for name in names if name not in held)
