"""What gangs on Kubernetes cost: the API server, the supervisors, and the control plane.

`gangs` holds 500 gangs of 64 pods in the double of an API server and watches a sample of them as run
workers do; `ticks` counts what one tick of every sensor asks for, beside more and more closed attempts.
All is counted, nothing is timed: requests, bytes, SQLite's steps, memory. The double's objects have no
managedFields, and its kubelet writes fewer events than a real one: bytes are lower bounds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import kubernetes_ticks
from benchmarks.kubernetes_gangs import (
    RANKS_OF_A_POD,
    Gang,
    Scale,
    Span,
    World,
    spans,
    supervised,
    wait,
)
from benchmarks.kubernetes_meter import Passed
from tests.wings.kubernetes.double.kube_double import kube_double
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.wings.kubernetes.effects.change_stream import WATCH_S_MAX, WATCH_S_MIN
from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher

Figures = dict[str, float]
MIB = 1024 * 1024
ONE, LARGE = "one gang", "one large gang"
AT_MOST = kubernetes_ticks.AT_MOST
WHY = kubernetes_ticks.WHY
# Of each gang, beside what is counted in a window shorter than a watch lives: three watches are begun
# again, and for the one of events the newest version is asked for.
RENEWALS_PER_S = 4 / ((WATCH_S_MIN + WATCH_S_MAX) / 2)


def run(
    scale: Scale | None = None,
    closed: tuple[int, ...] = kubernetes_ticks.CLOSED,
    own: tuple[int, ...] = kubernetes_ticks.OWN,
) -> Figures:
    """Return the figures of both parts."""
    return {**gang_figures(scale or Scale()), **kubernetes_ticks.figures(closed, own)}


def gang_figures(scale: Scale) -> Figures:
    """Start all gangs, watch the sample, let some start and some end, and count."""
    groups = _groups(scale)
    watched = [gang for gangs in groups.values() for gang in gangs]
    count = scale.gangs - len(watched) - scale.late
    others = [Gang(run_id=f"other-{number}", pods=scale.pods) for number in range(count)]
    late = [Gang(run_id=f"late-{number}", pods=scale.pods) for number in range(scale.late)]
    with (
        tempfile.TemporaryDirectory(prefix="tracks-bench-") as name,
        kube_double(Path(name) / "kube", pretend=True, history_max=50_000) as kube,
    ):
        world = World(kube, Path(name), scale)
        world.add_nodes(scale.gangs * scale.pods + 2 * scale.large_pods)
        try:
            return _watched(world, groups, others, late)
        finally:
            world.door.close()


def _groups(scale: Scale) -> dict[str, list[Gang]]:
    """Return the sample, by process."""
    made = {
        f"{size} gangs": [
            Gang(run_id=f"sample-{size}-{number}", pods=scale.pods) for number in range(size)
        ]
        for size in scale.samples
    }
    made[ONE] = [Gang(run_id="one", pods=scale.pods, ranks_of_a_pod=RANKS_OF_A_POD)]
    made[LARGE] = [Gang(run_id="large", pods=scale.large_pods, ranks_of_a_pod=RANKS_OF_A_POD)]
    return made


def _watched(
    world: World, groups: dict[str, list[Gang]], others: list[Gang], late: list[Gang]
) -> Figures:
    scale = world.scale
    watched = [gang for gangs in groups.values() for gang in gangs]
    with world.launcher() as launcher:
        world.start(launcher, [*others, *watched])
        started = world.door.passed()
        for gang in watched:
            world.beat(gang)
        _say(f"gangs: {len(world.kube.lives())} pods of {len(others) + len(watched)} gangs run")
        with supervised(world, groups) as watchers:
            all_of = list(watchers.values())
            wait(lambda: all(each.is_watching() for each in all_of), "every gang is watched")
            begun = {name: each.door.passed() for name, each in watchers.items()}
            steady = spans(all_of, lambda: time.sleep(scale.window_s))
            watching = {name: each.ask() for name, each in watchers.items()}
            sensors = _sensors(world, launcher, [*others, *watched])
            joined = spans(all_of, lambda: world.start(launcher, late))
            ending = _ending(groups, others, scale)

            def end() -> None:
                for gang in ending:
                    world.kube.preempt(world.running(gang)[0]["metadata"]["name"])
                wait(lambda: all(e.has_seen_ends(_own(e.gangs, ending)) for e in all_of), "ends")

            ended = spans(all_of, end)
            wait(lambda: world.left([g for g in ending if g in watched]) == 0, "nothing is left")
            at_the_end = {name: each.ask() for name, each in watchers.items()}
            idle = {name: each.idle for name, each in watchers.items()}
    names = list(groups)
    return {
        **_of_starts(started, len(others) + len(watched)),
        **_of_begins(begun, groups),
        **_of_steady(dict(zip(names, steady, strict=True)), groups, scale),
        **sensors,
        **_of_events(dict(zip(names, joined, strict=True)), groups, len(late), "start"),
        **_of_events(dict(zip(names, ended, strict=True)), groups, len(ending), "end"),
        **_of_ends(dict(zip(names, ended, strict=True))),
        **_of_memory(idle, watching, at_the_end),
    }


def _ending(groups: dict[str, list[Gang]], others: list[Gang], scale: Scale) -> list[Gang]:
    """Return the gangs that end: those whose supervisors' memory is measured, and of the others."""
    count = max(2, round(scale.ending * scale.gangs))
    return [*groups[ONE], *groups[LARGE], *others[: count - 2]]


def _own(gangs: list[Gang], ending: list[Gang]) -> int:
    return sum(gang in ending for gang in gangs)


def _of_starts(passed: Passed, gangs: int) -> Figures:
    _table(f"start of {gangs} gangs, per gang", passed, gangs)
    return {"start_requests_per_gang": sum(passed.requests.values()) / gangs}


def _of_begins(begun: Mapping[str, Passed], groups: Mapping[str, list[Gang]]) -> Figures:
    """Return what a supervisor asks before its steady state; reading each log once apart."""
    found: Figures = {}
    for name, passed in begun.items():
        gangs = len(groups[name])
        asked = sum(n for what, n in passed.requests.items() if what != ("get", "pods/log"))
        found[f"begin_of_watch_requests_per_gang @{name}"] = asked / gangs
        sent = sum(n for what, n in passed.sent_bytes.items() if what != ("get", "pods/log"))
        found[f"begin_of_watch_mb_per_gang @{name}"] = sent / gangs / 1e6
    _table(f"begin of a watch, per gang, of {ONE}", begun[ONE], 1)
    return found


def _of_steady(
    steady: Mapping[str, Span], groups: Mapping[str, list[Gang]], scale: Scale
) -> Figures:
    """Return requests a second of one gang by process, and of all gangs by the largest sample."""
    found: Figures = {}
    for name, span in steady.items():
        per = len(groups[name]) * span.seconds
        counted = sum(span.passed.requests.values()) / per
        found[f"requests_per_s_per_gang @{name}"] = counted + RENEWALS_PER_S
        found[f"answered_kb_per_s_per_gang @{name}"] = (
            sum(span.passed.sent_bytes.values()) / per / 1e3
        )
        found[f"store_requests_per_s_per_gang @{name}"] = span.store_calls / per
        found[f"supervisor_cpu_share_per_gang @{name}"] = span.cpu_s / per
    largest = f"{max(scale.samples)} gangs"
    span = steady[largest]
    per = len(groups[largest]) * span.seconds
    _table(f"steady state of {largest}, per gang and second", span.passed, per)
    for name in ("requests_per_s", "answered_kb_per_s", "store_requests_per_s"):
        found[f"{name}_of_{scale.gangs}_gangs"] = scale.gangs * found[f"{name}_per_gang @{largest}"]
    found[f"open_watches_of_{scale.gangs}_gangs"] = 3.0 * scale.gangs
    return found


def _sensors(world: World, launcher: KubernetesLauncher, gangs: list[Gang]) -> Figures:
    """Return what one tick of a sensor, and one sweep, ask for all gangs."""
    before = world.door.passed()
    for gang in gangs:
        launcher.glance(AttemptRef(gang.run_id, 1))
    glanced = world.door.passed().since(before)
    before = world.door.passed()
    standing = launcher.standing()
    swept = world.door.passed().since(before)
    _say(f"sensors: {len(gangs)} gangs glanced at, {len(standing)} objects stand")
    return {
        f"sensor_tick_requests @{len(gangs)} gangs": float(sum(glanced.requests.values())),
        f"sensor_tick_mb @{len(gangs)} gangs": sum(glanced.sent_bytes.values()) / 1e6,
        f"sweep_requests @{len(gangs)} gangs": float(sum(swept.requests.values())),
        f"sweep_mb @{len(gangs)} gangs": sum(swept.sent_bytes.values()) / 1e6,
    }


def _of_events(
    spans_of: Mapping[str, Span], groups: Mapping[str, list[Gang]], others: int, what: str
) -> Figures:
    """Return what every watcher is sent when a gang that it does not watch starts or ends."""
    return {
        f"events_kb_per_watcher_per_{what}_of_another @{name}": span.passed.sent_bytes.get(
            ("watch", "events"), 0
        )
        / len(groups[name])
        / others
        / 1e3
        for name, span in spans_of.items()
        if name not in (ONE, LARGE)
    }


def _of_ends(ended: Mapping[str, Span]) -> Figures:
    """Return what a supervisor asks from the preemption of a pod to the end of its attempt."""
    for name in (ONE, LARGE):
        _table(f"end of {name}, preempted", ended[name].passed, 1)
    return {
        f"end_requests @{name}": float(sum(ended[name].passed.requests.values()))
        for name in (ONE, LARGE)
    }


def _of_memory(
    idle: Mapping[str, dict[str, int]],
    watching: Mapping[str, dict[str, int]],
    at_the_end: Mapping[str, dict[str, int]],
) -> Figures:
    """Return a supervisor's resident memory: at its begin, while it watches, and at the most."""
    found: Figures = {}
    for name in at_the_end:
        found[f"supervisor_mib @{name}, idle"] = idle[name]["rss_bytes"] / MIB
        found[f"supervisor_mib @{name}, watching"] = watching[name]["rss_bytes"] / MIB
        found[f"supervisor_mib @{name}, peak"] = at_the_end[name]["peak_bytes"] / MIB
        found[f"supervisor_threads @{name}"] = float(watching[name]["threads"])
    return found


def _table(title: str, passed: Passed, per: float) -> None:
    """Print requests and kilobytes, by verb and resource."""
    _say(f"{title}:")
    for what in sorted(passed.requests):
        count, sent = passed.requests[what] / per, passed.sent_bytes.get(what, 0) / per / 1e3
        _say(f"  {' '.join(what):<32} {count:>10.3f} requests {sent:>12.3f} kB")
    for what in sorted(set(passed.sent_bytes) - set(passed.requests)):  # of watches open before
        sent = passed.sent_bytes[what] / per / 1e3
        _say(f"  {' '.join(what):<32} {'':>10}          {sent:>12.3f} kB")


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
