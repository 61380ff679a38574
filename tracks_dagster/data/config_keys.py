"""The kinds of key that a family's config may have: each knows its default and what it accepts."""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.samples import check_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberKey:
    """A number of the default's type, in a range that includes both ends."""

    default: int | float
    low: float
    high: float
    meaning: str

    def check(self, name: str, value: Json) -> Json:
        """Return the value as it stands in a config; raises InvalidInput."""
        kind = type(self.default)
        number = float(value) if kind is float and type(value) is int else value
        if type(number) is not kind:
            raise InvalidInput(
                f"{name} = {value!r} is no {kind.__name__}; it means: {self.meaning}."
            )
        if not self.low <= number <= self.high:
            raise InvalidInput(
                f"{name} = {value!r} is out of range: {self.low:g} to {self.high:g}."
            )
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchKey:
    """True or false."""

    default: bool
    meaning: str

    def check(self, name: str, value: Json) -> Json:
        """Return the value as it stands in a config; raises InvalidInput."""
        if type(value) is not bool:
            raise InvalidInput(f"{name} = {value!r} is neither true nor false: {self.meaning}.")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceKey:
    """One of a few words."""

    default: str
    choices: tuple[str, ...]
    meaning: str

    def check(self, name: str, value: Json) -> Json:
        """Return the value as it stands in a config; raises InvalidInput."""
        if value not in self.choices:
            raise InvalidInput(
                f"{name} = {value!r} is no choice; use one of: {', '.join(self.choices)}. It means: "
                f"{self.meaning}."
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsKey:
    """A list of windows of steps, as `track.skip_windows` reads it."""

    meaning: str

    @property
    def default(self) -> Json:
        """No window."""
        return []

    def check(self, name: str, value: Json) -> Json:
        """Return the value as it stands in a config; raises InvalidInput."""
        return check_windows(value)


ConfigKey = NumberKey | SwitchKey | ChoiceKey | WindowsKey
