"""A member of an archive that was changed, taken out or put in is named, with what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracks_dagster.recovery.effects.fsck import check_archive
from tracks_dagster.recovery.effects.fsck_tracks import FindingKind as K
from tracks_dagster.stores.archive import ARCHIVE_FORMAT, ArchiveManifest
from tracks_dagster.track.errors import ArchiveNewer, StoreUnsuitable
from tracks_dagster.track.records import sha256_hex


class FakeArchive:
    """An archive in memory; `manifest` None: it cannot be read."""

    def __init__(self, members: dict[str, bytes]) -> None:
        self.members = dict(members)
        self.digests: dict[str, str] | None = {n: sha256_hex(d) for n, d in members.items()}

    def names(self) -> list[str]:
        return sorted((*self.members, "MANIFEST.json"))

    def member(self, name: str) -> bytes | None:
        return self.members.get(name)

    def manifest(self) -> ArchiveManifest:
        if self.digests is None:
            raise StoreUnsuitable("It has no MANIFEST.json.")
        return ArchiveManifest(
            format=ARCHIVE_FORMAT,
            run_ids=("r-1",),
            head_seqs={},
            chunks_of=(),
            policy_versions=(),
            package_version="0",
            left_out=(),
            members=self.digests,
        )


def _no_manifest(archive: FakeArchive) -> None:
    archive.digests = None


CHANGED: dict[K, tuple[Callable[[FakeArchive], object], str]] = {
    K.MEMBER_CHANGED: (lambda a: a.members.update(two=b"other"), "was changed after the export"),
    K.MEMBER_MISSING: (lambda a: a.members.pop("two"), "was taken out after the export"),
    K.MEMBER_ADDED: (lambda a: a.members.update(three=b"3"), "was put in after the export"),
    K.ARCHIVE_UNREADABLE: (_no_manifest, "What the archive should hold is not known"),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_an_archive_that_was_changed_is_reported_member_by_member(kind: K) -> None:
    archive = FakeArchive({"one": b"1", "two": b"2"})
    assert list(check_archive(archive)) == []
    change, meaning = CHANGED[kind]
    change(archive)
    [finding] = check_archive(archive)
    assert finding.kind is kind
    assert meaning in finding.meaning
    assert "Ask for the archive again" in finding.to_do


def test_an_archive_of_a_newer_version_is_not_asked_for_again() -> None:
    class Newer(FakeArchive):
        def manifest(self) -> ArchiveManifest:
            raise ArchiveNewer("tracks-dagster '9.1' wrote it in format 9.")

    [finding] = check_archive(Newer({"one": b"1"}))
    assert finding.kind is K.ARCHIVE_NEWER
    assert "tracks-dagster '9.1' wrote it" in finding.meaning
    assert "Update tracks-dagster here" in finding.to_do
