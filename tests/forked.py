"""Processes of a test's own, forked from one server that has imported what they need.

A rank imports torch for 3 s of a core, a projector its databases for 1 s; forked, each starts at once.
The server is a worker's one, and as old as its first use: what a fixture sets in the environment
after that has to be handed over.
"""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    # The others are what scripts, optimizers, pyarrow and SQLAlchemy import when they are first used.
    [
        "tracks_dagster.training.attempt",
        "torch.nn.parallel",
        "torch.distributed.fsdp",
        "torch._dynamo",
        "pandas",
        "tests.training.gangs",
        "sqlalchemy.dialects.sqlite",
        "sqlalchemy.dialects.postgresql.psycopg2",
        "tests.real.test_ledger_processes",
        "tests.real.test_ledger_rebuilding",
    ]
)
