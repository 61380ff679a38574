"""What `tracks fsck` reports: something that is not as the record says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """Every kind of finding, by what it is about. Programs go by these; people read the sentences."""

    # a track
    RECORD_MISSING = "record_missing"
    RECORD_BROKEN = "record_broken"  # it does not parse, or does not follow the one before it
    RECORD_NEWER = "record_newer"  # it follows, and only a newer version can read it
    RECORD_EDITED = "record_edited"  # whole, but not the one that the ledger took in
    TRACK_CUT = "track_cut"  # records at its end are gone
    RECORD_WITHOUT_ROWS = "record_without_rows"  # it holds, and the ledger cannot be made of it
    RULES_BROKEN = "rules_broken"  # the state before a record does not allow it
    # what a record names by hash, or by what it says
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    DELETION_LIST_WRONG = "deletion_list_wrong"
    EVIDENCE_WRONG = "evidence_wrong"
    PLACES_WRONG = "places_wrong"
    TRAINER_WRONG = "trainer_wrong"
    SNAPSHOT_WRONG = "snapshot_wrong"
    EVAL_RESULT_WRONG = "eval_result_wrong"
    JOURNAL_GAP = "journal_gap"
    JOURNAL_EDITED = "journal_edited"
    JOURNAL_SHORT = "journal_short"
    # one track against another
    SOURCE_UNKNOWN = "source_unknown"  # what a run branched from is in no track
    SNAPSHOT_UNKNOWN = "snapshot_unknown"  # nor is what it trained on
    # the ledger
    LEDGER_LACKS_TRACK = "ledger_lacks_track"
    LEDGER_ROW_WRONG = "ledger_row_wrong"
    LEDGER_REMEMBERS_MORE = "ledger_remembers_more"  # than a broken track tells
    LEDGER_UNREADABLE = "ledger_unreadable"
    LEDGER_TRACK_LOST = "ledger_track_lost"
    # an exported run
    ARCHIVE_UNREADABLE = "archive_unreadable"
    ARCHIVE_NEWER = "archive_newer"
    MEMBER_MISSING = "member_missing"
    MEMBER_CHANGED = "member_changed"
    MEMBER_ADDED = "member_added"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that does not hold. where: a key, a track, a ledger's table or an archive's member.

    meaning: one or two sentences on what it means; to_do: what a person does about it.
    """

    kind: FindingKind
    where: str
    meaning: str
    to_do: str
