"""Errors that a user can cause: one line that says what is wrong, and a hint what to do."""

from __future__ import annotations


class RidgeFillError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message
        What is wrong, with the name of the file, key or tensor, what was expected and what was found.
    hint
        What the user can do about it; printed after the message.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message} (hint: {self.hint})" if self.hint else self.message
        return " ".join(text.split())


class UsageError(RidgeFillError, ValueError):
    """An option, setting or key that cannot be meant: a command ends with 2, as for an unknown option."""


class Interrupted(RidgeFillError):  # noqa: N818  # like KeyboardInterrupt
    """Ctrl-C ended a run that can be resumed."""


class MapsError(RidgeFillError):
    """A maps file or map set that breaks the format."""


class ModelError(RidgeFillError):
    """A model file that cannot be used."""


class StatisticsError(RidgeFillError):
    """Calibration sums that cannot be read, merged or fitted."""


class CorpusError(RidgeFillError):
    """Calibration text that cannot be used."""


class EncodingError(CorpusError):
    """Text that is not UTF-8."""


class NativeError(RidgeFillError):
    """The native library is missing, foreign or refused a call."""
