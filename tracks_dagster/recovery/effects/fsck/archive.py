"""Check an exported run against what its own manifest says, before its tracks are looked at.

The manifest is no proof by itself: who edits a member can edit it too. Then the chain of the records,
and the hashes in them, still tell; of a record at the end of a track only the sender's sha256 does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tracks_dagster.recovery.effects.fsck.findings import Finding, FindingKind
from tracks_dagster.stores.archive import MANIFEST, STORE, ArchiveManifest
from tracks_dagster.track.errors import ArchiveNewer, StoreUnsuitable
from tracks_dagster.track.records import sha256_hex

AGAIN = (
    "Ask for the archive again, and compare its sha256 with the one that `tracks export` printed"
)


class Archive(Protocol):
    """An exported run, as its file is."""

    def names(self) -> Sequence[str]:
        """Return the name of every member, sorted."""
        ...

    def member(self, name: str) -> bytes | None:
        """Return the bytes of a member, or None when there is none."""
        ...

    def manifest(self) -> ArchiveManifest:
        """Return what it says of itself; raises StoreUnsuitable."""
        ...


def check_archive(archive: Archive) -> Iterator[Finding]:
    """Yield every member that is not as the manifest says; reads one at a time."""
    try:
        members = archive.manifest().members
    except ArchiveNewer as error:
        yield Finding(
            kind=FindingKind.ARCHIVE_NEWER,
            where=MANIFEST,
            meaning=f"{error} Nothing of it was checked here.",
            to_do="Update tracks-dagster here, then run `tracks fsck` again; the archive need not be "
            "sent again.",
        )
        return
    except StoreUnsuitable as error:
        yield Finding(
            kind=FindingKind.ARCHIVE_UNREADABLE,
            where=MANIFEST,
            meaning=f"{error} What the archive should hold cannot be told.",
            to_do=f"{AGAIN}.",
        )
        return
    there = set(archive.names()) - {MANIFEST}
    for name in sorted(members.keys() | there):
        data = archive.member(name)
        if data is None:
            yield Finding(
                kind=FindingKind.MEMBER_MISSING,
                where=name,
                meaning=f"{name} is in the manifest of the archive and not in the archive: it was "
                "taken out after the export.",
                to_do=f"{AGAIN}.",
            )
        elif name not in members:
            yield Finding(
                kind=FindingKind.MEMBER_ADDED,
                where=name,
                meaning=f"{name} is in the archive and not in its manifest: it was put in after the "
                "export.",
                to_do=f"Do not believe it. {AGAIN}.",
            )
        elif (found := sha256_hex(data)) != members[name]:
            yield Finding(
                kind=FindingKind.MEMBER_CHANGED,
                where=name,
                meaning=f"{name} has sha256 {found}, and the manifest says {members[name]}: it was "
                "changed after the export.",
                to_do=f"Do not believe it. {AGAIN}.",
            )


def no_store(error: StoreUnsuitable) -> Finding:
    """Return what is wrong where the objects of an archive are no store that this version reads."""
    return Finding(
        kind=FindingKind.ARCHIVE_UNREADABLE,
        where=f"{STORE}format.json",
        meaning=f"{error} The tracks in the archive were not checked.",
        to_do=f"{AGAIN}; where a newer version wrote it, update this checkout.",
    )


def is_left_out(manifest: ArchiveManifest, key: str) -> bool:
    """Whether an object is not in the archive on purpose: rows of data, and what the manifest names."""
    is_row = key.startswith("datasets/") and "/log/" not in key and "/manifests/" not in key
    return is_row or any(each.what == key for each in manifest.left_out)
