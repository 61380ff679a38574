"""Which leases of a machine's devices hold, and what the record of a new one says. Pure.

A lease is over when the track of its run says that what it was given for has ended, when its gang is
gone from the machine, when the machine was booted since, or when nobody came for it in time. That last
rule needs no clock to be right: a supervisor confirms its lease before it starts anything, in the same
track. Either the confirmation comes before the lease that frees it, and the devices stay taken, or it
comes too late and nothing starts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.scheduling.devices_given import CPU
from tracks_dagster.scheduling.model import Demand, Device, Start
from tracks_dagster.track.bodies import DevicesLeased
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import ENV_LEASED_DEVICES, parse_attempt_key, parse_eval_attempt_key
from tracks_dagster.track.states.pool_state import Lease, PoolState, Quarantine
from tracks_dagster.track.states.run_state import RunState

# So long a lease waits for the Dagster run that was asked for to confirm it. On an overloaded machine a
# run may begin later; then it leases again, or waits its turn, and others had the devices meanwhile.
LEASE_S_MAX = 600.0
NAMED_MAX = 8  # devices in a message
OUT_CHARACTERS_MAX = 200  # of why a device is out
_WHOLE = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9-]{32,80}")  # a UUID that is not cut short
PRETENDED = "pretended"  # before a colon and a number: a pretended device; slots are "cpu:0" …


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The machine whose devices these are. boot_id, machine_id: empty where it does not tell."""

    node: str
    boot_id: str = ""
    machine_id: str = ""

    @property
    def pool(self) -> str:
        """The pool of this machine's own launcher."""
        return f"local/{self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at this machine's devices found. problem: why they are not known, in words.

    gone: those that are leased and not on the machine any more. instead: why slots on CPUs are given
    where a driver should have devices, in words.
    """

    devices: tuple[Device, ...] = ()
    problem: str | None = None
    gone: tuple[str, ...] = ()
    instead: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A lease in the pool's track. state: of its run; None where no track has that run.

    unread: why the run's track cannot be read, in words; then nobody knows whether it has ended.
    is_gone: whether no process of it lives on this machine, or ever will again.
    """

    lease: Lease
    state: RunState | None = None
    unread: str | None = None
    is_gone: bool = False


def why_over(holder: Holder, here: Here, now: datetime) -> str | None:
    """Return why a lease holds no more, in words; None while it holds."""
    lease, body = holder.lease, holder.lease.body
    if holder.unread is None and has_ended(holder.state, body.key):
        return f"{body.key} has ended"
    if holder.is_gone:
        return f"nothing of {body.key} lives any more"
    was_booted = body.boot_id and here.boot_id and body.boot_id != here.boot_id
    if was_booted and body.machine_id and body.machine_id == here.machine_id:
        return "the machine was booted since"
    # A clock that was set back must not hold it for longer than one that was not.
    if lease.confirmed_at is None and abs((now - lease.at).total_seconds()) > LEASE_S_MAX:
        return f"nobody came for it in {LEASE_S_MAX:g} s"
    return None


def has_lost(holder: Holder, gone: Collection[str]) -> bool:
    """Whether a device of a lease is gone from the machine before anything has started on it. What has
    started ends by itself, and nobody else starts on a device that is gone."""
    return holder.lease.confirmed_at is None and not set(gone).isdisjoint(holder.lease.body.devices)


def all_lost(given: Iterable[str], found: Found) -> str | None:
    """Return why nothing starts where this machine gave out devices and has none now: its CPUs are not
    a replacement unless a person says so. given: by the leases in the track. None where it has some, or
    never gave any."""
    names = [name for name in given if not name.startswith((f"{PRETENDED}:", f"{CPU}:"))]
    if found.instead is None or not names:
        return None
    listed = ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")
    return (
        f"{listed} was given before, and this machine has no device now ({found.instead}): load or "
        f"reset the driver, or reboot. TRACKS_DEVICES=cpu:{len(found.devices)} trains on its CPUs"
    )


def has_ended(state: RunState | None, key: str) -> bool:
    """Whether an attempt, or an attempt at an eval, is over by the track of its run. One that the
    track does not have is: the store lost it, and nothing of it can be recorded any more."""
    if state is None:
        return True
    named = parse_eval_attempt_key(key)
    if named is None:
        attempt = state.attempt(parse_attempt_key(key)[1])
        return attempt is None or not attempt.is_open
    _, eval_id, number = named
    return not any(
        (each.opened.eval_id, each.opened.number) == (eval_id, number) and each.ended is None
        for each in state.evals
    )


def without_quarantined(found: Found, state: PoolState | None, now: datetime) -> Found:
    """Return what was found, with the devices out that are in quarantine at `now`."""
    holding = (
        {} if state is None else {q.body.device: q for q in state.by_device.quarantined_at(now)}
    )
    devices = tuple(
        each if (quarantine := holding.get(each.name)) is None else _out(each, quarantine)
        for each in found.devices
    )
    return replace(found, devices=devices)


def _out(device: Device, quarantine: Quarantine) -> Device:
    until = f"{quarantine.until_at:%Y-%m-%d %H:%M} UTC"
    words = f"in quarantine until {until} by {quarantine.body.by}: {quarantine.body.why}"
    return replace(device, out=words[:OUT_CHARACTERS_MAX])


def find_name(given: str, names: Sequence[str], *, is_known: bool) -> str:
    """Return which of the devices `names` is meant: the one of that name, or the only one that begins
    so. is_known: whether these are all. Raises InvalidInput; slots on CPUs are not devices."""
    if given.startswith(f"{CPU}:"):
        raise InvalidInput(f"{given} is a slot on CPUs, which are all alike, and no device.")
    devices = [name for name in names if not name.startswith(f"{CPU}:")]
    found = [given] if given in devices else [name for name in devices if name.startswith(given)]
    if not found and not is_known and _WHOLE.fullmatch(given):
        return given
    if len(found) != 1:
        what = "names several devices" if found else "names no device"
        listed = ", ".join((found or devices)[:NAMED_MAX]) or "none that is known"
        raise InvalidInput(f"{given!r} {what} of this machine; it has: {listed}.")
    return found[0]


def two_machines(holding: Iterable[Lease], here: Here) -> str | None:
    """Say that another machine of the same name has leases in this pool; None where none has."""
    for lease in holding:
        other = lease.body.machine_id
        if other and here.machine_id and other != here.machine_id:
            return (
                f"pool {here.pool} is used by two machines of one name: {lease.body.key} holds devices "
                f"of machine {other[:12]}, this is {here.machine_id[:12]}. Give one of them another "
                "host name, or another store in TRACKS_POOL"
            )
    return None


def check_demand(count: int, found: Found) -> None:
    """Raise InvalidInput for a gang that this machine could never start, were all its devices free.

    Nothing is refused where the devices are not known.
    """
    names = [device.name for device in found.devices]
    slices = [name for name in names if name.startswith("MIG-")]
    if found.problem is None and count > len(names):
        listed = ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")
        raise InvalidInput(
            f"{count} ranks take {count} devices at once, and this machine has {len(names)}: {listed}. "
            f"Use at most {len(names)} ranks, or say in TRACKS_DEVICES what there is, for example cpu:"
            f"{count} (docs/settings.md)."
        )
    if count > 1 and slices:
        raise InvalidInput(
            f"{count} ranks cannot train on slices of devices ({', '.join(slices[:NAMED_MAX])}): CUDA "
            "shows a process one slice, and no collective crosses two. Use 1 rank."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBy:
    """Who gives a lease. store: the URL of its runs; work: the folder of its gangs; by: its name."""

    store: str
    work: str
    by: str


def lease_body(
    start: Start, demand: Demand, here: Here, given: GivenBy, freed: Sequence[Lease]
) -> DevicesLeased:
    """Return what the record of a lease says. freed: leases that are over."""
    return DevicesLeased(
        pool=here.pool,
        key=start.key,
        run_id=start.key.partition("/")[0],
        devices=start.devices,
        store=given.store,
        why=start.why,
        by=given.by,
        memory_bytes=demand.memory_bytes,
        freed=tuple(lease.seq for lease in freed),
        workload_class=demand.workload_class,
        team=demand.team,
        owner=demand.owner,
        work=given.work,
        boot_id=here.boot_id,
        machine_id=here.machine_id,
    )


def demand_of(body: DevicesLeased, *, kind: str) -> Demand:
    """Return what a lease was given for, as far as its record has it. kind: of its devices."""
    return Demand(
        key=body.key,
        count=len(body.devices),
        kind=kind,
        memory_bytes=body.memory_bytes,
        workload_class=body.workload_class,
        team=body.team,
        owner=body.owner,
    )


def device_environment(devices: Collection[str], *, hides_gpus: bool) -> dict[str, str]:
    """Return the variables of a gang or eval with these devices: it sees these and no others, numbered
    from 0 on, so that `cuda:LOCAL_RANK` is the rank's own."""
    listed = ",".join(devices)
    is_real = not listed.startswith((f"{PRETENDED}:", f"{CPU}:"))
    if not is_real and not hides_gpus:
        return {ENV_LEASED_DEVICES: listed}  # there may be accelerators of a kind not known here
    seen = listed if is_real else ""
    return {
        ENV_LEASED_DEVICES: listed,
        "CUDA_VISIBLE_DEVICES": seen,
        "HIP_VISIBLE_DEVICES": seen,
    }
