"""What a class, a team or an owner may have at once, and what is spent of the day's money. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tracks_dagster.scheduling.model import Demand, Running, Usage
from tracks_dagster.scheduling.policy import SWEEP, SchedulingPolicy
from tracks_dagster.track.text.units import cost_text

Key = tuple[str, ...]  # who is limited, for which kind of device


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """One limit in devices. who: whom it limits, as a sentence names them."""

    key: Key
    who: str
    devices: int


class Caps:
    """The limits of a policy, and what is taken of them."""

    def __init__(self, policy: SchedulingPolicy, running: Iterable[Running], usage: Usage) -> None:
        self._policy, self._usage = policy, usage
        self._taken: Counter[Key] = Counter()
        self._found: dict[tuple[str, str, str, str], tuple[Cap, ...]] = {}
        self._are_any = bool(policy.teams or policy.owners) or any(
            (each.devices, each.devices_per_team, each.devices_per_owner, each.money_per_day)
            != (None, None, None, None)
            for each in policy.classes.values()
        )
        if self._are_any:
            for each in running:
                self.add(each.demand)

    def add(self, demand: Demand) -> None:
        """Count the devices of one that starts."""
        if self._are_any:
            for cap in self.caps_of(demand):
                self._taken[cap.key] += demand.count

    def never(self, demand: Demand) -> str | None:
        """Return which limit it can never meet, or None."""
        if not self._are_any:
            return None
        for cap in self.caps_of(demand):
            if demand.count > cap.devices:
                return f"{cap.who} may have {cap.devices} at once"
        for who, limit, _ in self._money_of(demand):
            if limit <= 0:
                return f"{who} may spend nothing"
        return None

    def full(self, demand: Demand) -> Cap | None:
        """Return the limit that it would break now, or None."""
        if not self._are_any:
            return None
        caps = self.caps_of(demand)
        return next((c for c in caps if self._taken[c.key] + demand.count > c.devices), None)

    def spent(self, demand: Demand) -> str | None:
        """Return whose money for today is spent, in words, or None."""
        if not self._are_any:
            return None
        for who, limit, spent in self._money_of(demand):
            if spent >= limit:
                return (
                    f"{who} has spent {cost_text(spent)} of its {cost_text(limit)} for today (UTC)"
                )
        return None

    def taken(self, cap: Cap) -> int:
        """Return how many devices are taken of a limit."""
        return self._taken[cap.key]

    def caps_of(self, demand: Demand) -> tuple[Cap, ...]:
        """Return the limits in devices that a demand counts against."""
        who = (demand.kind, demand.workload_class, demand.team, demand.owner)
        found = self._found.get(who)
        if found is None:
            found = self._found[who] = tuple(self._caps_of(demand))
        return found

    def _caps_of(self, demand: Demand) -> Iterator[Cap]:
        policy, kind = self._policy, demand.kind
        name = policy.class_name(demand.workload_class)
        its = policy.classes[name]
        team = f"team {demand.team}" if demand.team else "a team"
        by = " (tuning.devices_per_team)" if name == SWEEP else ""  # the policy file's name of it
        for who, key, devices in (
            (f"class {name}", ("class", name), its.devices),
            (
                f"{team} in class {name}{by}",
                ("class", name, "team", demand.team),
                its.devices_per_team,
            ),
            (
                f"{demand.owner or 'an owner'} in class {name}",
                ("class", name, "owner", demand.owner),
                its.devices_per_owner,
            ),
        ):
            if devices is not None:
                yield Cap(key=(kind, *key), who=who, devices=devices)
        for noun, named, allowances in (
            ("team", demand.team, policy.teams),
            ("owner", demand.owner, policy.owners),
        ):
            allowed = allowances.get(named)
            if allowed is not None and allowed.devices is not None:
                yield Cap(key=(kind, noun, named), who=f"{noun} {named}", devices=allowed.devices)

    def _money_of(self, demand: Demand) -> Iterator[tuple[str, float, float]]:
        """Yield (who, limit, spent) of the money that counts for a demand."""
        policy, usage = self._policy, self._usage
        name = policy.class_name(demand.workload_class)
        limit = policy.classes[name].money_per_day
        if limit is not None:
            yield f"class {name}", limit, usage.money_by_class.get(name, 0.0)
        for noun, named, allowances, spent in (
            ("team", demand.team, policy.teams, usage.money_by_team),
            ("owner", demand.owner, policy.owners, usage.money_by_owner),
        ):
            allowed = allowances.get(named)
            if allowed is not None and allowed.money_per_day is not None:
                yield f"{noun} {named}", allowed.money_per_day, spent.get(named, 0.0)
