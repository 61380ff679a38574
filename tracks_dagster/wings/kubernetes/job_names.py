"""What the objects of a gang are called, and the labels by which they are found.

Names are derived, never drawn: an attempt's Job is known from its key, so a second start meets
AlreadyExists. A Job's name ends up in its pods' host names, a JobSet's in longer ones; all of them
are labels of DNS, of 63 characters at most.
"""

from __future__ import annotations

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import (
    LABEL_APP,
    LABEL_ATTEMPT,
    LABEL_RUN,
    MANAGED_BY,
    AttemptRef,
    check_run_id,
)
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.wings.kubernetes.settings import JOB_SET

ANNOTATION_ATTEMPT = "tracks/attempt"  # the attempt's key, exact
MEMBER = "gang"  # the one replicated job of a JobSet
NODES_MAX = 100_000  # parallelism of an Indexed Job, as the API server limits it
ATTEMPT_ID_MAX = 10**9
DNS_LABEL_MAX = 63
# A JobSet's webhook counts its pods' whole names: <name>-gang-0-<index>-<five random characters>.
JOB_NAME_MAX = DNS_LABEL_MAX - len(f"-{MEMBER}-0-{NODES_MAX - 1}-abcde")
HASH_DIGITS = 10  # 40 bits, beside the readable part

_PREFIX = "tracks"  # a Service's name begins with a letter, a run's id need not


def job_name(ref: AttemptRef) -> str:
    """Return the name of an attempt's Job (or JobSet), and of its Service.

    A label of DNS of at most 44 characters, starting with a letter: ("gpt-7", 2) →
    "tracks-gpt-7-a02-<10 hex digits of the pair's sha256>". The readable part has "-" for "." and
    may be cut, the hash is of the exact pair. Raises InvalidInput for what names no attempt.
    """
    check_run_id(ref.run_id)
    if not 1 <= ref.attempt_id <= ATTEMPT_ID_MAX:
        raise InvalidInput(f"{ref.attempt_id} numbers no attempt: use 1 to {ATTEMPT_ID_MAX}.")
    attempt = f"a{ref.attempt_id:02d}"
    digest = sha256_hex(ref.key.encode())[:HASH_DIGITS]
    room = JOB_NAME_MAX - len(f"{_PREFIX}--{attempt}-{digest}")
    readable = ref.run_id.replace(".", "-")[:room].strip("-")
    return "-".join(part for part in (_PREFIX, readable, attempt, digest) if part)


def pod_host(name: str, index: int, job_kind: str) -> str:
    """Return the host name of a gang's pod: the Job controller's `<job>-<index>`.

    name: of the Job or JobSet. A JobSet's Job is called `<JobSet>-gang-0`.
    """
    job = f"{name}-{MEMBER}-0" if job_kind == JOB_SET else name
    return f"{job}-{index}"


def run_label(run_id: str) -> str:
    """Return the value of LABEL_RUN: the run's id wherever a label can hold it.

    A label begins and ends with a letter or digit. An id that does not ("-x-") stands between two
    capital letters R, which no id has, so two runs never share a label.
    """
    fits = run_id[0] != "-" and run_id[-1] != "-"
    return run_id if fits else f"R{run_id}R"


def gang_labels(ref: AttemptRef) -> dict[str, str]:
    """Return the labels of everything that belongs to one attempt, its pods included."""
    return {
        LABEL_APP: MANAGED_BY,
        LABEL_RUN: run_label(ref.run_id),
        LABEL_ATTEMPT: str(ref.attempt_id),
    }
