"""What the policy asks of a declaration, of a valid run and of a promotion.

Each section of policy.yaml that asks for something is one class here; by default none does. A
violation is refused, or marked, with the rule's name: `Refused by policy submission.required_fields:
on_call is missing.` Names of people are taken as given: a record, not a log-in. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from tracks_dagster.track.bodies import (
    DELETE_AFTER_S_MAX,
    KEEP_MAX,
    LOGGED_BYTES_MAX,
    LOGGED_MAX,
    RetentionRule,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import (
    ACCUMULATION,
    BASE_CHECKPOINT,
    GLOBAL_BATCH,
    LR,
    MICRO_BATCH,
    OPTIMIZER,
    SCHEDULE,
    WARMUP,
    WEIGHT_DECAY,
)
from tracks_dagster.track.states.validity import ARTIFACTS
from tracks_dagster.track.text.units import byte_size, duration, money

ANY_CLASS = "any"
NOTE, DRAIN, RETRY, STOP = "note", "drain", "retry", "stop"
AGENT_ACTS = (NOTE, DRAIN, RETRY, STOP)
MEDIA_ITEMS_MAX, MEDIA_BYTES_MAX = 100_000, 2**40  # a launch's index is read as a whole
OWNER = "owner"  # in a list of people: the one who declared the run

PARAMETERS = (
    LR,
    SCHEDULE,
    WARMUP,
    WEIGHT_DECAY,
    GLOBAL_BATCH,
    MICRO_BATCH,
    ACCUMULATION,
    OPTIMIZER,
    BASE_CHECKPOINT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """required_fields: of a declaration, of FIELDS. required_parameters: of PARAMETERS, by workload
    class or ANY_CLASS: the config has a key in that role, with a value."""

    required_fields: tuple[str, ...] = ()
    required_parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """required_artifacts: of ARTIFACTS, without which a run does not count as valid. media_items,
    media_size_bytes: how much one launch may log beside numbers."""

    required_artifacts: tuple[str, ...] = ()
    media_items: int = LOGGED_MAX
    media_size_bytes: int = LOGGED_BYTES_MAX

    def __post_init__(self) -> None:
        if self.media_items > MEDIA_ITEMS_MAX:
            raise ValueError(f"A launch can log {MEDIA_ITEMS_MAX} things at most.")
        if self.media_size_bytes > MEDIA_BYTES_MAX:
            raise ValueError(f"A launch can log {byte_size(MEDIA_BYTES_MAX)} at most.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """required_signals: metrics that a valid run has reported. notify_stages: a run of these is
    refused where a red alert of it would reach nobody."""

    required_signals: tuple[str, ...] = ()
    notify_stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostContract:
    """max_cost: the most that a run may cost; one that names no cap gets this one."""

    max_cost: float | None = None

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.max_cost <= 0:
            raise ValueError("A cap in money is more than 0; write none where there is no cap.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Of the class `sweep`. trials: its runs in one experiment; devices_per_team: at once, which the
    queue keeps."""

    trials: int | None = None
    devices_per_team: int | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise ValueError("An experiment has 1 trial or more; none takes the limit away.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionContract:
    """seeds: so many other seeds of the same code, config and data must meet the threshold too.
    only_valid: a run that is not valid is not promoted."""

    seeds: int = 0
    only_valid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionContract:
    """The least that a run keeps. What ships is raised to it; less that a run asks for is refused."""

    keep_last: int = 1
    keep_best: int = 0
    delete_after_s: float = 0.0

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ValueError("The newest checkpoint is always kept: keep_last is 1 or more.")
        if max(self.keep_last, self.keep_best) > KEEP_MAX:
            raise ValueError(f"A run can keep {KEEP_MAX} checkpoints at most.")
        if self.delete_after_s > DELETE_AFTER_S_MAX:
            raise ValueError(f"A run can keep them {duration(DELETE_AFTER_S_MAX)} longer at most.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Governance:
    """Who may do what; None: anyone. A name is a person's, a team of `teams`, or OWNER.

    may_waive: evals, and the gates of a stage. may_raise_cap: above the policy's max_cost; nobody,
    where nobody is named. agents_may: of AGENT_ACTS, what an agent may do through `tracks mcp`;
    agent_acts: so often at most to one run within a day, all agents together.
    """

    may_promote: tuple[str, ...] | None = None
    may_waive: tuple[str, ...] | None = None
    may_raise_cap: tuple[str, ...] | None = ()
    agents_may: tuple[str, ...] = AGENT_ACTS
    agent_acts: int = 10
    teams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if OWNER in self.teams:
            raise ValueError(f"{OWNER} is the one who declared a run; give this team another name.")
        for team, people in self.teams.items():
            for name in people:
                if name == OWNER or name in self.teams:
                    raise ValueError(
                        f"{name!r} in the team {team} is not a person; name people here."
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracts:
    """The sections that ask for something; `RetryPolicy` and its scheduling are the others."""

    submission: Submission = field(default_factory=Submission)
    tracking: Tracking = field(default_factory=Tracking)
    monitoring: Monitoring = field(default_factory=Monitoring)
    cost: CostContract = field(default_factory=CostContract)
    tuning: Tuning = field(default_factory=Tuning)
    promotion: PromotionContract = field(default_factory=PromotionContract)
    retention: RetentionContract = field(default_factory=RetentionContract)
    governance: Governance = field(default_factory=Governance)


LIGHT = Contracts()
STRICT = Contracts(
    submission=Submission(
        required_fields=("intent", "owner", "team", "on_call", "commit"),
        required_parameters={ANY_CLASS: (LR, GLOBAL_BATCH)},
    ),
    tracking=Tracking(required_artifacts=ARTIFACTS),
    monitoring=Monitoring(required_signals=("loss",), notify_stages=("full",)),
    promotion=PromotionContract(seeds=2, only_valid=True),
    retention=RetentionContract(keep_last=3, keep_best=1),
    governance=Governance(may_promote=(OWNER,), may_waive=(OWNER,), agents_may=(NOTE,)),
)


# --- what is refused, and what is raised ----------------------------------------------------------


def refused(rule: str, words: str) -> InvalidInput:
    """Return the refusal of what violates `rule`, SECTION.KEY of policy.yaml."""
    return InvalidInput(f"Refused by policy {rule}: {words}")


def check_raised_cap(contracts: Contracts, max_cost: float, *, by: str, owner: str) -> None:
    """Raise InvalidInput for a cap in money above the policy's, by somebody who may not raise it."""
    for each in above_the_cap(contracts, max_cost, by=by, owner=owner):
        raise each


def above_the_cap(
    contracts: Contracts, max_cost: float | None, *, by: str, owner: str
) -> Iterator[InvalidInput]:
    """Yield why a cap in money is refused: it is above the policy's, and by whom may not raise it."""
    governance, most = contracts.governance, contracts.cost.max_cost
    if max_cost is None or most is None or max_cost <= most:
        return
    if not is_among(governance, "may_raise_cap", by, owner):
        yield refused(
            "cost.max_cost",
            f"a max cost of {money(max_cost)} is more than {money(most)}, the most for a run. By "
            f"governance.may_raise_cap {_who_may(governance, 'may_raise_cap', owner)}",
        )


def within(contracts: Contracts, rule: RetentionRule) -> RetentionRule:
    """Return a run's retention, with what is as shipped raised to the least of the policy."""
    shipped, least = RetentionRule(), contracts.retention
    raised = {
        each.name: max(getattr(rule, each.name), getattr(least, each.name))
        for each in fields(least)
        if getattr(rule, each.name) == getattr(shipped, each.name)
    }
    return replace(rule, **raised)


# --- who may --------------------------------------------------------------------------------------


def check_may(governance: Governance, act: str, doing: str, by: str, owner: str) -> None:
    """Raise InvalidInput where `by` is not among those who may.

    act: a field of `Governance`; doing: what is refused, in words; owner: whose run it is.
    """
    if not is_among(governance, act, by, owner):
        raise refused(f"governance.{act}", f"{doing}: {_who_may(governance, act, owner)}")


def is_among(governance: Governance, act: str, by: str, owner: str) -> bool:
    """Whether `by` is one of those who may: by name, of a team, or as the run's owner."""
    may = getattr(governance, act)
    return may is None or any(
        by.strip() in ((owner,) if name == OWNER else governance.teams.get(name, (name,)))
        for name in may
    )


def _who_may(governance: Governance, act: str, owner: str) -> str:
    who = ", ".join(_who(governance, name, owner) for name in getattr(governance, act))
    if not who:
        return "nobody may."
    return f"only {who} may. Names are taken as given: a record, not a log-in."


def _who(governance: Governance, name: str, owner: str) -> str:
    if name == OWNER:
        return f"the run's owner ({owner})"
    team = governance.teams.get(name)
    return name if team is None else f"{name} ({', '.join(team) or 'nobody'})"


# --- as text --------------------------------------------------------------------------------------


def contract_lines(contracts: Contracts) -> Iterator[str]:
    """Yield what is asked for, a line each; nothing where nothing is."""
    for section in fields(contracts):
        asked, shipped = getattr(contracts, section.name), getattr(LIGHT, section.name)
        for each in fields(asked):
            value = getattr(asked, each.name)
            if value != getattr(shipped, each.name):
                shown = _shown(value)
                if each.name.endswith("_s"):
                    shown = duration(value)
                if each.name.endswith("_bytes"):
                    shown = byte_size(value)
                shown = "nothing" if each.name == "agents_may" and not value else shown
                key = each.name.removesuffix("_s").removesuffix("_bytes")
                yield f"{section.name}.{key}: {shown}"


def _shown(value: Json) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_shown(each)}" for name, each in value.items())
    if isinstance(value, tuple):
        return ", ".join(value) or "nobody"
    if isinstance(value, bool):
        return str(value).lower()
    return "anyone" if value is None else money(value)
