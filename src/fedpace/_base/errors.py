"""The errors of fedpace: one base class, so that a host can catch everything of ours with one clause."""

from __future__ import annotations


class FedpaceError(Exception):
    """Base of every error that fedpace raises on purpose.

    Its text says what was expected, what came, and what to do about it.
    """


class InputError(FedpaceError, ValueError):
    """A value from outside is not usable: a delay, a moment, a weight, an option, a file."""


class OrderError(FedpaceError, RuntimeError):
    """A call came out of turn, such as reporting on a cohort that was never selected."""


class InfeasibleError(FedpaceError, RuntimeError):
    """The problem has no admissible answer, and no fallback was asked for."""


class StorageError(FedpaceError, OSError):
    """What was to be kept could not be written: a full disk, a quota, a lost mount."""


class FedpaceWarning(UserWarning):
    """Something works, but not as well as it could: what is missing, and what to do about it."""


class MissingExtraError(FedpaceError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str, missing: str, otherwise: str = "") -> None:
        what = f"{feature} needs {missing!r}, which is not installed: pip install 'fedpace[{extra}]'"
        super().__init__(f"{what}; {otherwise}" if otherwise else what)
