"""Reads a track record by record and says which decision broke the rules of retention.

Written from the design and not from `track.states.protection` or `checkpoints.retention`: it keeps
its own notes of what each record said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.records import Kind, Record


@dataclass
class Seen:
    """One commit, as the records tell of it."""

    order: tuple[int, int]  # attempt, step
    loss: float
    is_verified: bool = False
    quarantined_at: datetime | None = None
    superseded_at: datetime | None = None
    is_deleted: bool = False
    pins: set[str] = field(default_factory=set)

    @property
    def is_resumable(self) -> bool:
        return self.quarantined_at is None and not self.is_deleted


class Oracle:
    """`see` raises AssertionError at the first record that breaks a rule."""

    def __init__(self, rule: RetentionRule) -> None:
        self.rule = rule
        self.commits: dict[str, Seen] = {}
        self.open_evals: dict[tuple[str, int], str] = {}
        self.aliases: dict[str, str] = {}
        self.open_attempt: int | None = None
        self.in_use: set[str] | None = None  # None: the open attempt has not restored
        self.opened_with: set[str] = set()
        self.pinned_at: dict[str, datetime] = {}  # by a branch, the newest time

    def see(self, record: Record) -> None:
        """Take in the next record."""
        body: Any = record.body
        sha256 = str(body.get("manifest_sha256", ""))
        match record.kind:
            case Kind.ATTEMPT_OPENED:
                self.open_attempt, self.in_use = record.attempt_id, None
                self.opened_with = _named(body["resume"])
            case Kind.ATTEMPT_RESTORED:
                restored = _named(body["checkpoint"])
                self.in_use = self.opened_with | restored
                for each in restored:
                    self.commits[each].is_verified = True
            case Kind.ATTEMPT_ENDED:
                self.open_attempt = None
            case Kind.CHECKPOINT_COMMITTED:
                ref = body["ref"]
                order = (ref["attempt_id"], ref["step"])
                self.commits[ref["manifest_sha256"]] = Seen(order, body["metrics"]["loss"])
            case Kind.CHECKPOINT_VERIFIED:
                self.commits[sha256].is_verified = True
            case Kind.CHECKPOINT_QUARANTINED:
                self.commits[sha256].quarantined_at = record.at
            case Kind.CHECKPOINT_PINNED:
                assert not self.commits[sha256].is_deleted, "a pin on a deleted checkpoint"
                self.commits[sha256].pins.add(body["pin"])
                if body["pin"].startswith("branch:"):
                    self.pinned_at[sha256] = record.at
            case Kind.CHECKPOINT_UNPINNED:
                self.commits[sha256].pins.discard(body["pin"])
            case Kind.EVAL_OPENED:
                of = body["checkpoint"]["manifest_sha256"]
                assert not self.commits[of].is_deleted, "an eval of a deleted checkpoint"
                self.open_evals[body["eval_id"], body["number"]] = of
            case Kind.EVAL_ENDED:
                self.open_evals.pop((body["eval_id"], body["number"]), None)
            case Kind.PROMOTION_DECIDED:
                self.aliases[body["alias"]] = body["checkpoint"]["manifest_sha256"]
            case Kind.CHECKPOINT_SUPERSEDED:
                self._superseded(sha256, record.at)
            case Kind.CHECKPOINT_DELETED:
                self._deleted(sha256, record.at)

    @property
    def resume_target(self) -> str | None:
        """What a resume would take."""
        return self._greatest(lambda seen: seen.is_resumable)

    @property
    def last_verified(self) -> str | None:
        """The newest commit that was read in full and may be resumed from."""
        return self._greatest(lambda seen: seen.is_resumable and seen.is_verified)

    @property
    def best(self) -> set[str]:
        """The best by loss of all that may be resumed from."""
        usable = [(s.loss, sha) for sha, s in self.commits.items() if s.is_resumable]
        worst_kept = sorted(usable)[: self.rule.keep_best]
        # Of equal ones any may be kept: only what is better than all that was let go is certain.
        return {sha for loss, sha in worst_kept if [v for v, _ in usable].count(loss) == 1}

    @property
    def pinned(self) -> set[str]:
        """Everything that somebody holds."""
        held = {sha for sha, seen in self.commits.items() if seen.pins}
        return held | set(self.open_evals.values()) | set(self.aliases.values())

    @property
    def precious(self) -> set[str]:
        """What may never be lost."""
        certain = {self.resume_target, self.last_verified}
        return {sha for sha in certain if sha} | self.best | self.pinned

    def _superseded(self, sha256: str, at: datetime) -> None:
        assert sha256 not in self.precious, "a precious checkpoint was superseded"
        target = self.resume_target
        assert target is not None, "the last of all was superseded"
        assert self.commits[target].is_verified, "superseded before the newest was verified"
        milestone = self.rule.milestone_every_steps
        step = self.commits[sha256].order[1]
        assert not milestone or step % milestone, "a milestone was superseded"
        self.commits[sha256].superseded_at = at

    def _deleted(self, sha256: str, at: datetime) -> None:
        seen = self.commits[sha256]
        assert sha256 not in self.precious, "a precious checkpoint was deleted"
        let_go_at = seen.superseded_at or seen.quarantined_at
        assert let_go_at is not None, "deleted without having been superseded or quarantined"
        waited_s = (at - let_go_at).total_seconds()
        assert waited_s >= self.rule.delete_after_s, f"deleted after {waited_s} s"
        if self.open_attempt is not None:
            assert self.in_use is not None, "deleted while an open attempt had not restored"
            assert sha256 not in self.in_use, "deleted what the open attempt goes on from"
            own = [s.order for s in self.commits.values() if s.order[0] == self.open_attempt]
            assert seen.order != max(own, default=None), "deleted the open attempt's newest commit"
        seen.is_deleted = True

    def _greatest(self, wanted: Any) -> str | None:
        found = [(seen.order, sha) for sha, seen in self.commits.items() if wanted(seen)]
        return max(found)[1] if found else None


def _named(ref: Any) -> set[str]:
    return {ref["manifest_sha256"]} if ref is not None else set()
