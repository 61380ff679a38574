"""What an exported run consists of: one tar.gz whose members are objects of the store, byte for byte.

    README.txt        how to read it, for people
    store/<key>       every object, under its own key
    MANIFEST.json     what is in it and what is not, and the sha256 of every other member

The manifest comes last, so that an archive is written in one pass. Pure: it names and describes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import ArchiveNewer, StoreUnsuitable, TrackBroken
from tracks_dagster.track.records import canonical_json

ARCHIVE_FORMAT = 1
SUFFIX = ".tar.gz"
README = "README.txt"
MANIFEST = "MANIFEST.json"
STORE = "store/"  # before the key of every object

MEMBERS_MAX = 1_000_000  # files of one archive
NAME_CHARACTERS_MAX = 1024  # of one of them: a key has 900, below `store/`
NAMES_CHARACTERS_MAX = 128 * 1024**2  # of all of them, which are kept in memory
MEMBER_BYTES_MAX = 1024**3  # of one of them: a chunk has 8 MiB, a large manifest 100
TOTAL_BYTES_MAX = 64 * 1024**3  # of all of them, unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Objects that are not in the archive. what: keys or a kind of them; why: in words."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveManifest:
    """What an archive holds.

    run_ids: the exported run, then those that it branched from. head_seqs: track → seq of the last
    record in it. chunks_of: runs whose checkpoints are in it whole. policy_versions: of the decisions.
    members: name → sha256 of its bytes.
    """

    format: int
    run_ids: tuple[str, ...]
    head_seqs: Mapping[str, int]
    chunks_of: tuple[str, ...]
    policy_versions: tuple[str, ...]
    package_version: str
    left_out: tuple[LeftOut, ...]
    members: Mapping[str, str]


def manifest_bytes(manifest: ArchiveManifest) -> bytes:
    """Return the bytes of `MANIFEST.json`: equal for equal archives."""
    return canonical_json(to_json(manifest)) + b"\n"


def parse_manifest(data: bytes) -> ArchiveManifest:
    """Return the manifest; raises StoreUnsuitable for what is none, ArchiveNewer for a later format."""
    try:
        stored = json.loads(data)
        found = stored["format"]
        if isinstance(found, int) and found > ARCHIVE_FORMAT:
            raise ArchiveNewer(
                f"tracks-dagster {str(stored.get('package_version'))[:40]!r} wrote it in format "
                f"{found}, and this version reads {ARCHIVE_FORMAT}. Update this checkout to that "
                "version."
            )
        manifest = from_json(ArchiveManifest, stored)
        if found != ARCHIVE_FORMAT or not isinstance(manifest.members, dict):
            raise ValueError(f"its format is {found!r}")
    except (ValueError, KeyError, TypeError, RecursionError, TrackBroken) as error:
        raise StoreUnsuitable(f"Its {MANIFEST} cannot be read ({error}).") from error
    return manifest


def readme(run_id: str, *, package_version: str) -> str:
    """Return what a person reads who has only the archive."""
    return f"""\
The training run {run_id}, exported by tracks-dagster {package_version}.

Read it with tracks-dagster, on any machine, without a network, a store or a ledger:

    tracks explain --archive THIS_FILE {run_id}        what was tried, why it ended, what to do
    tracks explain --archive THIS_FILE {run_id}/a01    one attempt
    tracks diff --archive THIS_FILE {run_id}/a01 {run_id}/a02
    tracks fsck --archive THIS_FILE                    whether anything in it was changed

Every other command that only reads takes TRACKS_STORE=THIS_FILE.

Without it: store/ holds objects under the keys that they had. store/runs/{run_id}/log/ is the run's
track, one JSON record a file, in order; each names the sha256 of the one before it. An attempt's
evidence (how its processes ended, the tails of their logs) and its journal (a line a step) lie under
store/runs/{run_id}/attempts/<number>/. store/datasets/ holds the tracks of the data and what each
snapshot consists of, without the rows.

{MANIFEST} lists every file with its sha256, and what was left out. `tracks export` makes the same bytes
again from the same records; whoever made this file can tell you its sha256.
"""
