"""What a policy can never start, and which of its promises nobody can keep. Pure.

Found by playing: each class, team and owner asks for its smallest gang on devices that are all free,
and the rules of the queue answer as they would answer a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracks_dagster.scheduling.model import NEVER, Demand, Device
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.scheduling.rules import PlanContext, plan
from tracks_dagster.track.text.units import counted, duration


def find_impossible(policy: SchedulingPolicy, devices: Sequence[Device] = ()) -> Iterator[str]:
    """Yield a sentence for each thing that cannot be.

    devices: of the pool. A gang that is larger than all of it is not a fault of the policy: that is
    played as if there were enough, and so is everything without devices.
    """
    kept = sum(each.reserved for each in policy.classes.values())
    for name, its in policy.classes.items():
        asked = Demand(key="it", count=its.ranks_min, workload_class=name)
        yield from _never(policy, f"class {name}", asked, devices, kept)
    ranks_min = policy.class_of(None).ranks_min
    for team in policy.teams:
        asked = Demand(key="it", count=ranks_min, team=team)
        yield from _never(policy, f"team {team}", asked, devices, kept)
    for owner in policy.owners:
        asked = Demand(key="it", count=ranks_min, owner=owner)
        yield from _never(policy, f"owner {owner}", asked, devices, kept)
    yield from _promises(policy)


def _never(
    policy: SchedulingPolicy, who: str, asked: Demand, devices: Sequence[Device], kept: int
) -> Iterator[str]:
    kinds = {device.kind for device in devices}
    pools = [[each for each in devices if each.kind == kind] for kind in sorted(kinds)]
    enough = [Device(name=str(number)) for number in range(asked.count + kept)]
    large = [pool for pool in pools if len(pool) >= asked.count] or [enough]
    why = [_refusal(policy, asked, pool) for pool in large]
    if None not in why:  # it starts on no kind of device
        ranks = counted(asked.count, "rank")
        yield f"{who}: a gang of {ranks} never starts: {why[0]}"


def _refusal(policy: SchedulingPolicy, asked: Demand, pool: Sequence[Device]) -> str | None:
    alike = [Device(name=device.name, node=device.node) for device in pool]
    waits = plan([asked], [], alike, PlanContext(policy=policy, now_s=0.0)).wait(asked.key)
    return waits.why if waits is not None and waits.starts == NEVER else None


def _promises(policy: SchedulingPolicy) -> Iterator[str]:
    if not policy.moves:
        return
    for name, its in policy.classes.items():
        lower = [
            each
            for each in policy.classes.values()
            if each.priority < its.priority and each.loss_s is not None
        ]
        if its.promise_s is not None and not lower:
            promise = "at once" if its.promise_s == 0 else duration(its.promise_s)
            yield (
                f"class {name}: nobody can keep its promise ({promise}): no class of lower priority "
                "may lose anything"
            )
