"""What somebody asks for, to be prepared by one policy or another and declared, for tests.

REQUEST = asked(run_id="r-1", intent="See how it goes.", config={"steps": 40})
declare(tracks, REQUEST.but(ranks=2), policy=policy)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from tests.examples import example
from tracks_dagster.attempts.effects import runs
from tracks_dagster.attempts.effects.branches import Origin
from tracks_dagster.attempts.effects.preparing import Prepared, prepare
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.track.bodies import CodeVersion, RunDeclared
from tracks_dagster.track.records import Json

CODE = CodeVersion(git_commit="c0ffee", branch=None, dirty=False, package_version="0")
_OF_CODE = frozenset(each.name for each in fields(FoundCode))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """given: values of a declaration's fields. found: its code; None of a branch that takes its
    source's. origin: what it is a branch of."""

    given: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Json] = field(default_factory=dict)
    found: FoundCode | None = None
    origin: Origin | None = None
    family: str | None = None
    is_limited: bool = False

    @property
    def run_id(self) -> str:
        return str(self.given["run_id"])

    def but(self, **changes: Any) -> Self:
        """Return the same with other values: of fields, of the code, or of what is asked besides."""
        own = {each.name: changes.pop(each.name) for each in fields(self) if each.name in changes}
        rule = changes.pop("retention", None)
        given = {**self.given, **({} if rule is None else asdict(rule))}
        of_code = {name: changes.pop(name) for name in _OF_CODE & changes.keys()}
        if of_code:
            base = self.found or FoundCode(
                project=example(), archive=b"a tar", folder=None, code=CODE, code_diff=None
            )
            own["found"] = replace(base, **of_code)
        return replace(self, given={**given, **changes}, **own)

    def prepared(self, policy: RetryPolicy = DEFAULT_POLICY) -> Prepared:
        """Return what will be declared by that policy."""
        name = example().name if self.found is None else self.found.project.name
        return prepare(
            self.given,
            self.config,
            CODE if self.found is None else self.found,
            family=self.family or name,
            origin=self.origin,
            policy=policy,
            otherwise={},
            is_limited=self.is_limited,
        )


def asked(**values: Any) -> Asked:
    """Return what asks for a run of the example, in a folder that nobody names."""
    return Asked().but(**{"project": example(), **values})


def declare(
    tracks: Tracks, request: Asked, *, policy: RetryPolicy = DEFAULT_POLICY, **more: Any
) -> RunDeclared:
    """Declare it by that policy; more: as of `runs.declare`."""
    return runs.declare(tracks, request.prepared(policy), policy=policy, **more)
