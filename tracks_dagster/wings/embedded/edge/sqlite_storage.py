"""Dagster's storage in SQLite, over connections that stay open.

Dagster opens the database for every statement, compiles the statement, and lists the tables before it
writes a sensor's state: that was two thirds of what the daemon of a home with an open run did. Its own
classes do all else here, so the files are the same, and either can go on with what the other left.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self

from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.schedules.sqlite.sqlite_schedule_storage import SqliteScheduleStorage
from dagster._serdes import ConfigurableClassData
from sqlalchemy import Connection, Engine, create_engine

BUSY_S_MAX = 30  # until a writer that waits for another one gives up
ENGINES_MAX = 32  # databases of one process: two, one of all events, and one for each run's
KEPT_MAX = 5  # connections to each; who needs another one opens and closes it


class KeptRuns(SqliteRunStorage):
    """Dagster's runs."""

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """Return the storage in the folder `base_dir`."""
        return cls.from_local(inst_data=inst_data, **config_value)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Give a connection in a transaction."""
        with _engine(self._conn_string).begin() as connection:
            yield connection


class KeptSchedules(SqliteScheduleStorage):
    """The state and the ticks of sensors and schedules."""

    def __init__(self, conn_string: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(conn_string, inst_data)
        self._built: set[str] = set()  # a table or an index that is there stays there

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """Return the storage in the folder `base_dir`."""
        made = cls.from_local(inst_data=inst_data, **config_value)
        assert isinstance(made, cls)
        return made

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Give a connection in a transaction."""
        with _engine(self._conn_string).begin() as connection:
            yield connection

    def has_built_index(self, migration_name: str) -> bool:
        """Whether the migration of that name was done."""
        if migration_name not in self._built and super().has_built_index(migration_name):
            self._built.add(migration_name)
        return migration_name in self._built

    def _has_instigators_table(self, conn: Connection) -> bool:
        if "instigators" not in self._built and super()._has_instigators_table(conn):
            self._built.add("instigators")
        return "instigators" in self._built


class KeptEvents(SqliteEventLogStorage):
    """The events of runs, a database for each run and one of what concerns assets."""

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """Return the storage in the folder `base_dir`."""
        return cls(inst_data=inst_data, **config_value)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        engine = _engine(self.conn_string_for_shard(shard))
        with self._db_lock:
            if shard not in self._initialized_dbs:
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            with engine.begin() as connection:
                yield connection


def _engine(url: str) -> Engine:
    return _engine_of(url, os.getpid())


@lru_cache(maxsize=ENGINES_MAX)
def _engine_of(url: str, pid: int) -> Engine:
    """pid: a connection of SQLite must not be used by a process that was forked later."""
    return create_engine(
        url, pool_size=KEPT_MAX, max_overflow=-1, connect_args={"timeout": BUSY_S_MAX}
    )
