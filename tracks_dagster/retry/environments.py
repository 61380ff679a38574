"""Whether an attempt may resume with other libraries or code than those that wrote its checkpoint.

Asked before a gang starts, so that no step is spent on a resume that could not be exact. Pure: the
launcher's machine reports what the gang will find, `attempt_placed` what it was, and the rules of the
retry policy decide what matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.track.records import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRule:
    """One key of an environment whose difference refuses a resume.

    parts: how many leading parts of a version must be the same, None for the whole value. With 2,
    3.11.4 → 3.12.0 is refused and 3.11.4 → 3.11.9 only reported, as every key without a rule is.
    """

    key: str
    parts: int | None = None

    def __post_init__(self) -> None:
        if not self.key or (self.parts is not None and self.parts < 1):
            raise ValueError(
                f"The environment rule for {self.key!r} cannot hold: it needs a key, and at least 1 "
                f"part of a version to compare, not {self.parts}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key with another value. saved: as the checkpoint was written; found: as it is now."""

    key: str
    saved: Json
    found: Json

    @property
    def words(self) -> str:
        """The difference in words, for example "torch 2.12.0 → 2.13.0"."""
        return f"{self.key} {_shown(self.saved)} → {_shown(self.found)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentJudgement:
    """refused: the differences that a rule forbids; reported: those that are only shown."""

    refused: tuple[Difference, ...]
    reported: tuple[Difference, ...]

    @property
    def is_allowed(self) -> bool:
        """Whether the attempt may resume without a person's word."""
        return not self.refused


def differences(saved: Mapping[str, Json], found: Mapping[str, Json]) -> tuple[Difference, ...]:
    """Return what differs, by key. A key that one of the two lacks is not compared."""
    return tuple(
        Difference(key=key, saved=saved[key], found=found[key])
        for key in sorted(saved.keys() & found.keys())
        if saved[key] != found[key]
    )


def judge(found: Sequence[Difference], rules: Sequence[EnvironmentRule]) -> EnvironmentJudgement:
    """Divide differences into those that `rules` refuse and those that are only reported."""
    by_key = {rule.key: rule for rule in rules}
    refused = [each for each in found if _is_refused(each, by_key.get(each.key))]
    return EnvironmentJudgement(
        refused=tuple(refused), reported=tuple(each for each in found if each not in refused)
    )


def format_differences(found: Sequence[Difference]) -> str:
    """Return differences as one list, separated by commas."""
    return ", ".join(each.words for each in found)


def _is_refused(difference: Difference, rule: EnvironmentRule | None) -> bool:
    if rule is None:
        return False
    return bool(_leading(difference.saved, rule.parts) != _leading(difference.found, rule.parts))


def _leading(value: Json, parts: int | None) -> Json:
    """Return the first parts of a version; of 2.4.1, with 2 parts, ["2", "4"]."""
    return value.split(".")[:parts] if parts is not None and isinstance(value, str) else value


def _shown(value: Json) -> str:
    """Return a value as people read it: a digest by its first digits, none as "none"."""
    if value is None:
        return "none"
    text = str(value)
    return text[:12] if len(text) == 64 else text
