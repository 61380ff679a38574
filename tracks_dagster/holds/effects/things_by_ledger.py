"""Find by the ledger what no track is named for: a manifest's sha256, a commit, a node."""

from __future__ import annotations

from collections.abc import Sequence

from tracks_dagster.holds.lineage import COMMIT_CHARACTERS_MIN, PREFIX_CHARACTERS_MIN
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.text.nearest import did_you_mean, instead

KNOWN_MAX = 10_000  # names that the ledger is asked for, to find the nearest
AMBIGUOUS_NAMED_MAX = 5
NODES_NAMED_MAX = 5
CODE_NAMED_MAX = 3  # of the runs declared last


def find_manifest(ledger: Ledger | None, name: str) -> tuple[str, str]:
    """Return run id and manifest sha256 of the checkpoint whose manifest's begins with `name`.

    Raises UnknownRun when there is none, InvalidInput when there are several, or no ledger.
    """
    if ledger is None:
        raise InvalidInput(
            f"checkpoint:{name} can be found only with a ledger; write checkpoint:RUN@STEP, or build "
            "one with `tracks reindex`."
        )
    rows = ledger.query(
        "select run_id, manifest_sha256 from checkpoints where manifest_sha256 >= :name "
        "and manifest_sha256 < :beyond order by manifest_sha256 limit 2",
        {"name": name, "beyond": _beyond(name)},
    )
    one_of(f"checkpoint:{name}", [row["manifest_sha256"] for row in rows])
    if not rows:
        raise UnknownRun(
            f"No checkpoint has a manifest with the sha256 {name!r}; `tracks checkpoints list RUN` "
            "shows those of a run, and checkpoint:RUN@STEP names one."
        )
    return rows[0]["run_id"], rows[0]["manifest_sha256"]


def find_node(ledger: Ledger | None, name: str) -> str:
    """Return `name` if attempts ran on a node of that name or no ledger can tell; raises UnknownRun."""
    sql = "select node from attempt_nodes where node = :node limit 1"
    if ledger is not None and not ledger.query(sql, {"node": name}):
        known = sorted(_names(ledger, "select distinct node as name from attempt_nodes"))
        ran = ", ".join(known[:NODES_NAMED_MAX]) or "none"
        more = f" and {len(known) - NODES_NAMED_MAX} more" if len(known) > NODES_NAMED_MAX else ""
        raise UnknownRun(
            f"No attempt ever ran on a node {name!r}; "
            f"{instead(name, known, f'they ran on: {ran}{more}.')}"
        )
    return name


def find_code(ledger: Ledger | None, name: str) -> str:
    """Return the whole commit or environment that begins with `name`, or the version that it is.

    Raises UnknownRun naming the nearest, InvalidInput when it begins several.
    """
    if ledger is None:
        return name
    is_commit, is_environment = (
        len(name) >= COMMIT_CHARACTERS_MIN,
        len(name) >= PREFIX_CHARACTERS_MIN,
    )
    rows = ledger.query(
        "select git_commit as name from training_runs where git_commit = :name "
        "or substr(git_commit, 1, :n) = :prefix "
        "union select package_version from training_runs where package_version = :name "
        "union select environment_sha256 from training_attempts "
        "where environment_sha256 >= :environment and environment_sha256 < :beyond",
        {
            "name": name,
            "n": len(name),
            "prefix": name if is_commit else "",
            "environment": name if is_environment else "",
            "beyond": _beyond(name) if is_environment else "",
        },
    )
    found = [row["name"] for row in rows]
    if name in found:
        return name
    one_of(f"code:{name}", found)
    if found:
        return str(found[0])
    known = _names(
        ledger,
        "select git_commit as name from training_runs union select package_version from training_runs",
    )
    close = did_you_mean(name, sorted({each[: len(name)] for each in known}))
    raise UnknownRun(
        f"No run was declared with code {name!r}; {close}{_newest_code(ledger)}give the first "
        f"{COMMIT_CHARACTERS_MIN} or more digits of a commit, a version, or the first "
        f"{PREFIX_CHARACTERS_MIN} of an environment's sha256."
    )


def one_of(given: str, found: Sequence[str]) -> None:
    """Raise InvalidInput naming what `given` may mean when that is more than one thing."""
    if len(set(found)) > 1:
        named = ", ".join(sorted(set(found))[:AMBIGUOUS_NAMED_MAX])
        raise InvalidInput(f"{given} names more than one thing; write one of {named}.")


def _newest_code(ledger: Ledger) -> str:
    """Return what the newest runs were declared with, as a clause to go on after."""
    rows = ledger.query(
        "select coalesce(git_commit, package_version) as name, max(declared_at) as newest_at "
        "from training_runs group by coalesce(git_commit, package_version) "
        f"order by newest_at desc, name limit {CODE_NAMED_MAX}"
    )
    named = ", ".join(str(row["name"])[:12] for row in rows)
    return f"the newest runs have {named}; " if named else ""


def _names(ledger: Ledger, sql: str) -> list[str]:
    rows = ledger.query(f"select name from ({sql}) named limit {KNOWN_MAX}")
    return [row["name"] for row in rows if row["name"] is not None]


def _beyond(prefix: str) -> str:
    """Return what every longer text of hex digits that begins with `prefix` comes before."""
    return f"{prefix}g"
