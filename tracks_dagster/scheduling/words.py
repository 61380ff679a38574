"""The sentences of a plan, as status, triage and the UI print them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracks_dagster.scheduling.devices_given import CPU
from tracks_dagster.scheduling.model import Demand, Device, Running
from tracks_dagster.scheduling.placement import FreeDevices, Near
from tracks_dagster.scheduling.policy import Placement
from tracks_dagster.track.text.units import about, counted

NAMED_MAX = 3  # of several, in one sentence


def needs(demand: Demand) -> str:
    """Return what it wants: "2 devices with 9.8 GiB"."""
    memory = demand.memory_bytes
    size = "" if memory is None else f" with {memory / 2**30:.1f} GiB"
    return f"{counted(demand.count, _noun(demand))}{size}"


def free(demand: Demand, free: int, usable: int) -> str:
    """Return what there is for it: "1 of 2 devices free"."""
    return f"{free} of {counted(usable, _noun(demand))} free"


def kept(classes: Sequence[tuple[str, int]], ahead: str) -> str:
    """Return for whom free devices are kept: for the one ahead, or for classes."""
    for_whom = [ahead] if ahead else [f"class {name}" for name, _ in classes]
    return f", kept for {listed(for_whom)}" if for_whom else ""


def after(keys: Sequence[str], in_s: float, ahead: str) -> str:
    """Return what it waits for. ahead: the first of the queue, where that is another."""
    if math.isfinite(in_s):
        return f"after {listed(keys)}, about {about(in_s)}" if keys else f"about {about(in_s)}"
    if ahead:
        return f"in its turn, behind {ahead}"
    if not keys:
        return "nobody knows when"
    whose = "end" if len(keys) == 1 else "ends"
    return f"after {listed(keys, 'or')}, whose {whose} nobody knows"


def makes_room(keys: Sequence[str], in_s: float) -> str:
    """Return that others save and end for it."""
    verbs = "saves and makes" if len(keys) == 1 else "save and make"
    return f"{listed(keys)} {verbs} room, about {about(in_s)}"


def move(running: Running, demand: Demand, class_name: str, now_s: float) -> str:
    """Return why a run makes room, and what that costs it."""
    saved = "it has not saved yet"
    if running.committed_s is not None:
        did = "resumed" if running.committed_s == running.began_s else "saved"
        saved = f"it {did} {about(now_s - running.committed_s)} ago"
    lost = f"about {running.unsaved_ranks_s:.0f} rank seconds are at stake"
    return f"{demand.key} of class {class_name} needs {needs(demand)}; {saved}, {lost}"


def no_devices(demand: Demand) -> str:
    """Return that there is nothing of its kind."""
    kind = f" of kind {demand.kind}" if demand.kind and demand.kind != CPU else ""
    return f"needs {needs(demand)}; there is no {_noun(demand)}{kind} here"


def too_few(demand: Demand, large_enough: int, there: int) -> str:
    """Return that there are not so many that are large enough."""
    if large_enough == there:
        return f"needs {needs(demand)}; there {'is' if there == 1 else 'are'} {there} here"
    return f"needs {needs(demand)}; of {there} here {large_enough} are large enough"


def kept_for_ever(demand: Demand, there: int, kept: Sequence[tuple[str, int]]) -> str:
    """Return that higher classes keep too many."""
    names = " and ".join(f"{count} for class {name}" for name, count in kept)
    return f"needs {needs(demand)}; of {there} here the policy keeps {names}"


def capped_for_ever(demand: Demand, problem: str) -> str:
    """Return that a limit is below it."""
    return f"needs {needs(demand)}; by the policy {problem}"


def out(demand: Demand, usable: int, devices: Sequence[Device]) -> str:
    """Return which devices are out, and why."""
    named = [f"{each.name} ({each.out})" for each in devices]
    return f"needs {needs(demand)}; {usable} may be given, and out {_be(named)} {listed(named)}"


def where(free: FreeDevices, names: Sequence[str], placement: Placement, near: Near) -> str:
    """Return where a gang is, and why there; nothing where there is only one place to be."""
    nodes = free.nodes_of(names)
    beside = ""
    if near.nodes:
        asked = listed(near.keys or near.nodes)
        is_near = set(nodes) <= set(near.nodes)
        beside = f"beside {asked}, " if is_near and near.keys else ""
        beside = beside or ("" if is_near else f"no room beside {asked}, ")
    elif len(free.nodes) == 1:
        return ""
    if len(nodes) > 1:
        return f"; {placement}: {beside}on {len(nodes)} nodes, {listed(nodes)}"
    [node] = nodes
    used, size = free.in_use(node)
    return f"; {placement}: {beside}on {node}, of whose {size} {used} are now in use"


def links(devices: Sequence[Device]) -> str:
    """Return the islands that hold all of a gang; nothing where devices have no links to know of."""
    if len(devices) < 2 or len({device.node for device in devices}) > 1:
        return ""
    if not all(device.islands for device in devices):
        is_real = all(device.model for device in devices)  # its driver did not tell
        return "; how they are linked is not known" if is_real else ""
    by_link = zip(*(device.islands for device in devices), strict=False)
    shared = [f"one {islands[0]}" for islands in by_link if len(set(islands)) == 1]
    return f"; in {listed(shared)}" if shared else "; no island of fast links holds all of them"


def listed(names: Sequence[str], conjunction: str = "and") -> str:
    """Return names as a sentence has them: "a, b and 4 more"."""
    shown = list(names[:NAMED_MAX])
    if (more := len(names) - len(shown)) > 0:
        return f"{', '.join(shown)} {conjunction} {more} more"
    *others, last = shown
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _noun(demand: Demand) -> str:
    return "CPU slot" if demand.kind == CPU else "device"
