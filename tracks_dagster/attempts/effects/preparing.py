"""From what somebody gives to what will be declared: the same for every edge.

`runs.declare` checks and records it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tracks_dagster.attempts.declaring.fields import RETENTION, merge
from tracks_dagster.attempts.effects.branches import Origin
from tracks_dagster.attempts.effects.redeclared import check_as_declared
from tracks_dagster.attempts.effects.runs import RunRequest, limited, within_policy
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.track.bodies import CodeVersion, RetentionRule
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What will be declared. request: within the policy and the limits of its stage; config: of the run
    before its stage cut it."""

    request: RunRequest
    config: Mapping[str, Json]

    def check_as_declared(self, existing: RunState, given: Collection[str]) -> None:
        """Raise InvalidInput where a value that was given is not that of the run of that id.

        A stage that nobody named cuts what a run of another one was declared with, so its cut does not
        count.
        """
        cut = self.request
        config = {
            name: cut.config[name] if cut.is_limited else self.config[name] for name in self.config
        }
        check_as_declared(existing, replace(cut, config=config), given)


def prepare(
    given: Mapping[str, Any],
    config: Mapping[str, Json],
    code: FoundCode | CodeVersion,
    *,
    family: str,
    origin: Origin | None,
    policy: RetryPolicy,
    otherwise: Mapping[str, Any],
    is_limited: bool = False,
) -> Prepared:
    """Return what will be declared, of a branch with all that it takes over.

    given: values of `declaring.fields` that somebody chose, by name; otherwise: those of the edge where
    nobody did. config: overrides. code: what was found, or this package's own version for a branch that
    takes its source's code. is_limited: it keeps to the limits of its stage, whatever the policy's
    profile. Raises InvalidInput.
    """
    found = code if isinstance(code, FoundCode) else None
    values = merge(
        given,
        source={} if origin is None else origin.fields,
        project=None if found is None else found.project,
        otherwise=otherwise,
    )
    rule = RetentionRule(**{each.name: values.pop(each.name) for each in RETENTION})
    request = RunRequest(
        family=family,
        config=config,
        retention=rule,
        checkpoints_may_be_off=policy.checkpoints_may_be_off,
        is_limited=is_limited,
        **values,
        **({"code": code} if found is None else found.fields),
    )
    request = request if origin is None else origin.continued_by(request)
    bounded = limited(within_policy(request, policy.contracts), policy)
    return Prepared(request=bounded, config=request.config)
