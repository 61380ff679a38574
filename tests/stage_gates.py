"""A planted decider: what a new one needs is this file, and one line where its sensor is made."""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.ledger.deciding import Answer, Append, Wait
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGates:
    """Lets a smoke run pass its gate once it has committed enough steps."""

    name: str = "stage_gates"
    steps: int = 20

    def due(self, world: World) -> list[str]:
        rows = world.ledger.query(
            "select run_id from training_runs where stage = :stage order by declared_at, run_id",
            {"stage": "smoke"},
        )
        return [row["run_id"] for row in rows]

    def decide(self, state: RunState, world: World) -> Answer:
        if state.finished is not None or any(n.body.by == self.name for n in state.notes):
            return None
        done = max((each.ref.step for each in state.checkpoints), default=0)
        if done < self.steps:
            return Wait(why=f"step {done} of {self.steps}")
        note = Note(by=self.name, text=f"Passed at step {done}.")
        return Append(draft=world.tracks.draft(Kind.NOTE, note), what="passed", why=note.text)
