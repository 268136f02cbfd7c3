"""What somebody got wrong: one clear line that says what, where and what to do."""

from __future__ import annotations


class LightError(ValueError):
    """Wrong input. The command line prints it as one line and exits with status 2."""


class SettingError(LightError):
    """Settings or data that do not go with the kit."""


class FolderError(LightError):
    """A folder or file that cannot be used: not writable, damaged, or another run's."""


class MessageError(LightError):
    """Bytes that are damaged, foreign, or not what was agreed on. They are not used."""
