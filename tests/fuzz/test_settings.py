"""Settings of a wrong kind, as files and programs give them: taken, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from pflego.runs.record import TABLES
from pflego.settings.tables import Settings, known, read_settings
from tests.support.odd import JSON, VALUES, fuzzed, tried

NAMES = st.sampled_from(
    [*(name for table in TABLES for name in known(table)), "steps", "client_lr", "nothing"]
)


def _toml(value: object) -> bool:
    """Tell whether TOML can hold a value."""
    try:
        tomli_w.dumps({"value": value}).encode()
    except (TypeError, ValueError, AttributeError):
        return False
    return True


@fuzzed(200)
@given(st.dictionaries(NAMES, VALUES, max_size=2))
def test_any_settings_are_taken_or_refused(given_: dict[str, object]) -> None:
    tried(lambda: Settings.of(given_).check())


@fuzzed(100)
@given(
    st.dictionaries(
        st.sampled_from([*TABLES, "steps", "drop", "data"]),
        (JSON | st.dictionaries(NAMES, JSON, max_size=2)).filter(_toml),
        max_size=2,
    )
)
def test_any_toml_is_taken_or_refused(tmp_path: Path, tables: dict[str, object]) -> None:
    (tmp_path / "any.toml").write_text(tomli_w.dumps(tables))
    tried(lambda: Settings.of(read_settings(tmp_path / "any.toml")).check())
