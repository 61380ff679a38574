"""Depth-first search through every state of the append model, with a memo.

`Config.reduced` leaves out orders of steps that cannot matter, by two rules:

- *Settled steps are taken at once.* Four kinds of step neither see nor change what any other actor
  does: a gang or a note setting out, reading a record that stands, creating where a record stands,
  and finding the place after the last record still free. Anyone who takes them early ends in the same
  state as anyone who takes them late, because records never change: a writer that found the place free
  and then loses it learns so and reads on, exactly as if it had looked later; a gang that never goes
  on after its start is one that never started.
- *A sensor decides and claims in one step.* A claim takes effect on the very log that it was made
  on, or not at all: once any other record stands there, it gets TAKEN and the sensor is idle, as
  if it had never decided. So a claim that waits adds nothing but a claim that is made when it takes
  effect. One whose reply was lost still waits, with the write landed, still under way, or gone.

What is left of an actor is then a function of the log alone (a gang stands at the tail, with the fact
that comes after those it has appended), but for the replies lost and the creations under way: the
search goes through every order of successful appends, and every loss at each of them.

Both rules rest on how the machines go about their appends, so a fault planted in a machine is looked
for without them, in the smallest world that can show it: whatever happens there happens in every
larger world, too. A test shows that worlds small enough for both searches reach the same logs.

Sensors are alike, and so are the gangs of one attempt, so only the first idle one of them starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.model.actors import Cast, Config, Rules, claim_at_tail
from tests.model.world import Actor, Log, Machine, Sensor, World, Writer, first_log
from tracks_dagster.track import append
from tracks_dagster.track.append import Create, Created, Read
from tracks_dagster.track.records import Kind


@dataclass(slots=True, kw_only=True)
class Report:
    """What a search found; `broken` holds, by property, one log that breaks it."""

    states: int = 0
    logs: set[Log] = field(default_factory=set)
    broken: dict[str, list[str]] = field(default_factory=dict)


class Model:
    """One search; its memo and its logs are its own."""

    def __init__(self, config: Config, rules: Rules | None = None) -> None:
        self.config = config
        self.cast = Cast(config=config, rules=rules or Rules())
        self.report = Report()
        self._settled_actors: dict[tuple[Actor, Log], Actor] = {}
        self._known: dict[tuple[object, ...], Actor] = {}
        self._requests: dict[Machine, append.Request] = {}

    def run(self, until: str | None = None) -> Report:
        """Search all that can be reached, or until the property that `until` names is broken.

        A world that broke a property is not followed further.
        """
        actors = tuple(self._same(actor) for actor in self.cast.actors())
        start = World(first_log(), actors, frozenset(), self.config.losses)
        seen, stack = {start}, [start]
        self._judge(start.log)
        while stack and until not in self.report.broken:
            world = stack.pop()
            for after in self._steps(world):
                if after.log.wrong is not None:
                    self._break(after.log.wrong, after.log)
                    continue
                after = self._settled(after)
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
                    self._judge(after.log)
        self.report.states = len(seen)
        return self.report

    # --- one step of the world ---

    def _steps(self, world: World) -> Iterator[World]:
        for index, actor in enumerate(world.actors):
            if actor.machine is not None:
                yield from self._answers(world, index, actor)
                if isinstance(actor, Sensor):  # killed, and started again
                    yield self._with(world, index, Sensor(actor.name))
            elif _is_first_idle(world, index):
                for started in self.cast.starts(world.log, actor):
                    if self.config.reduced and isinstance(actor, Sensor):
                        yield from self._answers(world, index, started)
                    else:
                        yield self._with(world, index, started)
        for request in world.flying:
            if request.seq == len(world.log.data):
                landed = world.log.append(request.data)
                yield world._replace(log=landed, flying=world.flying - {request})

    def _answers(self, world: World, index: int, actor: Actor) -> Iterator[World]:
        """Yield what may follow the actor's request, replies lost and requests delayed included."""
        log, losses = world.log, world.losses
        request = self._request(actor)
        if _is_settled(request, log):
            yield self._with(world, index, self._advance(actor, _settled_reply(request, log), log))
            if isinstance(request, Create) and losses:
                unknown = self._advance(actor, Created.UNKNOWN, log)
                yield self._with(world._replace(losses=losses - 1), index, unknown)
            return
        if not isinstance(request, Create):
            last: Any = log.records[-1]  # a mutant that lists; no product machine gets here
            yield self._with(world, index, self._advance(actor, last, log))
            return
        longer = log.append(request.data)
        if longer.wrong is not None:
            yield world._replace(log=longer)  # not followed further
            return
        written = world._replace(log=longer)
        yield self._with(written, index, self._advance(actor, Created.YES, longer))
        if losses:
            yield self._with(
                written._replace(losses=losses - 1),
                index,
                self._advance(actor, Created.UNKNOWN, longer),
            )
            unknown = self._advance(actor, Created.UNKNOWN, log)
            lost = world._replace(losses=losses - 1)
            yield self._with(lost, index, unknown)
            yield self._with(lost._replace(flying=world.flying | {request}), index, unknown)

    def _settled(self, world: World) -> World:
        size = len(world.log.data)
        flying = world.flying
        if any(request.seq < size for request in flying):
            flying = frozenset(request for request in flying if request.seq >= size)
        actors = world.actors
        if self.config.reduced:
            actors = tuple(self._settle(actor, world.log) for actor in actors)
        return world._replace(actors=actors, flying=flying)

    def _settle(self, actor: Actor, log: Log) -> Actor:
        """Take every step of `actor` whose outcome is settled already."""
        known = self._settled_actors.get((actor, log))
        if known is not None:
            return known
        before = actor
        if isinstance(actor, Writer) and actor.machine is None and not actor.over:
            actor = next(self.cast.starts(log, actor), actor)
        while actor.machine is not None:
            request = self._request(actor)
            if not _is_settled(request, log):
                break
            actor = self._advance(actor, _settled_reply(request, log), log)
        actor = self._settled_actors[before, log] = self._same(actor)
        return actor

    def _request(self, actor: Actor) -> append.Request:
        machine = actor.machine
        assert machine is not None
        if machine not in self._requests:
            self._requests[machine] = machine.request
        return self._requests[machine]

    def _with(self, world: World, index: int, actor: Actor) -> World:
        before, after = world.actors[:index], world.actors[index + 1 :]
        return world._replace(actors=(*before, self._same(actor), *after))

    def _same(self, actor: Actor) -> Actor:
        return self._known.setdefault(actor.key, actor)

    def _advance(self, actor: Actor, reply: append.Reply, log: Log) -> Actor:
        actor, lie = self.cast.advance(actor, reply, log)
        if lie is not None:
            self._break(lie, log)
        return actor

    # --- what must hold, besides what each log says ---

    def _judge(self, log: Log) -> None:
        if log in self.report.logs:
            return
        self.report.logs.add(log)
        if not self._can_end(log, claims=3):
            self._break("the run cannot be ended by a sensor alone", log)

    def _can_end(self, log: Log, *, claims: int) -> bool:
        """Tell whether a sensor alone, everybody else dead, can end the run."""
        assert log.state is not None
        if log.state.finished is not None:
            return True
        choices = {draft.kind: draft for draft in self.cast.decisions(log, "sensor0")}
        for kind in (Kind.RUN_FINISHED, Kind.ATTEMPT_ENDED, Kind.ATTEMPT_OPENED):
            if kind in choices and claims:
                request = self._request(Sensor("sensor0", claim_at_tail(choices[kind], log)))
                assert isinstance(request, Create)
                return self._can_end(log.append(request.data), claims=claims - 1)
        return False

    def _break(self, what: str, log: Log) -> None:
        self.report.broken.setdefault(what, log.lines())


def _is_settled(request: append.Request, log: Log) -> bool:
    """Tell whether the reply is the same whatever others do meanwhile, or makes no difference."""
    if isinstance(request, Create):
        return request.seq < len(log.data)
    return isinstance(request, Read)


def _settled_reply(request: append.Request, log: Log) -> append.Reply:
    if isinstance(request, Create):
        return Created.TAKEN
    return log.data[request.seq] if request.seq < len(log.data) else None


def _is_first_idle(world: World, index: int) -> bool:
    """Tell whether no actor that is just like this one, and idle too, comes before it."""
    actor = world.actors[index]
    if isinstance(actor, Sensor):
        return not any(
            isinstance(other, Sensor) and other.machine is None for other in world.actors[:index]
        )
    if actor.over:
        return False
    before = world.actors[index - 1] if index else None
    return not (
        isinstance(before, Writer)
        and before.attempt_id == actor.attempt_id
        and before.machine is None
        and not before.over
    )
