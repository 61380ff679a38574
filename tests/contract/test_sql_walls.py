"""`tracks sql` on real Postgres servers, as attacked: nothing that it runs has an effect.

Where Debian's PostgreSQL is installed its server answers too: before 16 it lets functions of large
objects write in a read-only transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy as sa

from tests.contract.conftest import NewUrl
from tests.postgres_server import find_debians, own_postgres
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.engine import make_engine, transaction
from tracks_dagster.ledger.effects.database.schema import READER
from tracks_dagster.ledger.effects.database.sql_allowed import parse_select
from tracks_dagster.ledger.effects.database.sql_query import run_sql
from tracks_dagster.track.errors import InvalidInput

ATTACKS = [
    "select lo_from_bytea(4242, 'evil')",
    "select lo_creat(-1)",
    "select pg_catalog.lo_creat(-1)",
    'select "lo_creat"(-1)',
    "select (4242).lo_create",
    "select x.lo_create from generate_series(4242, 4242) x",
    "select x.lo_create, 1 as lo_create from generate_series(4242, 4242) as x",
    "select pg_notify('a', 'b')",
    "select pg_advisory_lock(1)",
    "select 1 from notes where lo_creat(-1) > 0",
    "select * from lo_creat(-1)",
    "select count(*) filter (where lo_creat(-1) > 0) from notes",
    "select 1 order by lo_creat(-1)",
    "with x as (select lo_creat(-1)) select * from x",
    "select sum(1) over (order by lo_creat(-1))",
    "select query_to_xml('select lo_creat(-1)', true, true, '')",
    "select set_config('transaction_read_only', 'off', true)",
    "select pg_read_file('/etc/passwd')",
    "select pg_ls_dir('/')",
    "select lo_export(4242, '/tmp/evil')",
    "select pg_create_physical_replication_slot('evil')",
    "select pg_switch_wal()",
    "select pg_sleep(1)",
    "select 'pg_authid'::regclass",
    "select * from pg_authid",
    "select * from pg_catalog.pg_shadow",
    "select * from information_schema.tables",
    "select (with pg_shadow as (select 1) select 1), s.* from pg_shadow s",
    'with "Pg_shadow" as (select 1) select * from Pg_shadow',
    "with pg_shadow as (select * from pg_shadow) select * from pg_shadow",
    "show data_directory",
    "select '\\', '; commit; begin; create table evil(x int); commit; begin; select 1 as a --'",
    "select 1 /* /* */ , lo_creat(-1) -- */ */",
    "select $$a$$, lo_creat(-1)",
    "select e'\\', lo_creat(-1), '",
    # A change within a query, or beside it.
    "with gone as (delete from notes returning *) select * from gone",
    "with a as (with b as (update notes set text = '' returning 1) select * from b) select * from a",
    "select (with added as (insert into notes select * from notes returning 1) select 1)",
    "with x as (copy notes to '/tmp/evil') select 1",
    "select * into evil from notes",
    "select * from notes for update",
    "explain analyze delete from notes",
    "select 1; delete from notes",
    "select 1 --\r; delete from notes",
    "select 1; prepare evil as select lo_creat(-1); execute evil",
    "copy (select 1) to program 'touch /tmp/evil'",
    "attach '/tmp/evil.db' as evil",
    "pragma writable_schema = on",
    "pragma writable_schema",
    "vacuum into '/tmp/evil.db'",
    "export database '/tmp/evil'",
    "do $$ begin perform lo_creat(-1); end $$",
    "call evil()",
    "lock table notes",
    # A call where an expression may be, and by other names.
    "select case when true then lo_creat(-1) end",
    "select array(select lo_creat(-1))",
    "values (lo_creat(-1))",
    "select 1 from notes limit lo_creat(-1)",
    "select * from notes join lateral (select lo_creat(-1)) x on true",
    "select * from notes n cross join lateral lo_creat(-1)",
    "select string_agg(text, ',' order by lo_creat(-1)) from notes",
    "select lower('x') over w from notes window w as (order by lo_creat(-1))",
    "select 1 --\r, lo_creat(-1)",
    "select 1 /* /* */ */, lo_creat(-1) /* */",
    "select 1 {# , lo_creat(-1) #}",
    "select 1 \xa0, lo_creat(-1)",
    'select "Lo_Creat"(-1)',
    'select "pg_catalog"."lo_creat"(-1)',
    'select U&"\\006c\\006f_creat"(-1)',
    "select (select notes from notes).lo_create",
    "select b.lo_create from (select 4242) b",
    "select 1 operator(public.+) 2",
    # What reads or writes a file, a server or a session.
    "select lo_import('/etc/passwd')",
    "select pg_stat_file('/etc/passwd')",
    "select readfile('/etc/passwd')",
    "select writefile('/tmp/evil', 'x')",
    "select load_extension('/tmp/evil.so')",
    "select * from read_parquet('/etc/passwd')",
    "from '/etc/passwd'",
    "table pg_authid",
    'select * from "/etc/passwd"',
    'select * from "public"."notes"',
    "select * from sqlite_master",
    "select * from dblink('host=evil', 'select 1')",
    "select nextval('evil')",
    "select pg_terminate_backend(1)",
    "select table_to_xml('pg_authid', true, true, '')",
]


@pytest.fixture(scope="module")
def debian_url() -> Iterator[str]:
    """The superuser's URL of Debian's server."""
    programs = find_debians()
    if programs is None:
        pytest.skip("Debian's PostgreSQL is not installed.")
    with own_postgres(programs) as server:
        yield server.url("postgres")


@pytest.fixture(params=["wheel", "debian"])
def superuser_url(request: pytest.FixtureRequest) -> str:
    """A superuser's URL of a fresh database."""
    if request.param == "wheel":
        url: str = request.getfixturevalue("postgres_url")
        return url
    url = request.getfixturevalue("debian_url")
    database = f"tracks_{uuid.uuid4().hex}"
    execute(url, f"create database {database}")
    return sa.make_url(url).set(database=database).render_as_string(hide_password=False)


@pytest.fixture
def owner_url(superuser_url: str) -> Iterator[str]:
    """The URL of an ordinary role that owns the database."""
    role = f"owner_{uuid.uuid4().hex}"
    url = sa.make_url(superuser_url)
    execute(
        superuser_url, f"create role {role} login", f"alter database {url.database} owner to {role}"
    )
    execute(superuser_url, f"grant all on schema public to {role}")
    yield url.set(username=role, password=None).render_as_string(hide_password=False)
    execute(superuser_url, f"reassign owned by {role} to current_user", f"drop owned by {role}")
    execute(superuser_url, f"drop role {role}")


def execute(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements and return the rows of the last."""
    with _connected(url) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return [] if cursor.description is None else list(cursor.fetchall())


@contextmanager
def _connected(url: str) -> Iterator[psycopg2.extensions.connection]:
    plain = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = psycopg2.connect(plain)
    connection.autocommit = True
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("query", ATTACKS)
def test_what_may_do_more_than_read_is_refused_before_a_server_sees_it(query: str) -> None:
    try:
        select = parse_select(query)
    except InvalidInput:
        return
    # A call for the server alone, which is asked for it, or a string as it stands.
    assert select.named.attributes == {"lo_create"} or select.query.startswith("select '\\', ';")


def test_no_query_has_an_effect(owner_url: str) -> None:
    execute(owner_url, "alter role current_user set standard_conforming_strings = off")
    open_ledger(owner_url)
    for query in ATTACKS:
        try:
            columns, rows = run_sql(owner_url, query)
        except InvalidInput:
            continue
        assert (len(columns), len(rows)) == (2, 1), "a string, as it stands"
    assert execute(owner_url, "select oid from pg_largeobject_metadata") == []
    assert execute(owner_url, "select tablename from pg_tables where tablename = 'evil'") == []


def test_no_query_has_an_effect_on_a_file(new_url: NewUrl) -> None:
    url = new_url("sqlite")
    open_ledger(url)
    ledger = Path(sa.make_url(url).database or "")

    def files() -> tuple[bytes, list[Path], list[Path]]:
        return ledger.read_bytes(), sorted(ledger.parent.iterdir()), [*Path("/tmp").glob("evil*")]

    before = files()
    for query in ATTACKS:
        try:
            columns, rows = run_sql(url, query)
        except InvalidInput:
            continue
        assert (len(columns), len(rows)) == (2, 1), "a string, as it stands"
    assert files() == before


def test_whatever_happens_within_a_reading_transaction_is_rolled_back(owner_url: str) -> None:
    open_ledger(owner_url)
    with transaction(make_engine(owner_url), "read", write=False) as connection:
        try:
            connection.exec_driver_sql("select lo_create(4242)")
        except sa.exc.DBAPIError:  # from PostgreSQL 16 on
            return
    assert execute(owner_url, "select oid from pg_largeobject_metadata") == []


def test_a_refusal_lists_what_may_be_called_and_what_to_do(owner_url: str) -> None:
    open_ledger(owner_url)
    with pytest.raises(InvalidInput, match=r"does not call lo_creat.* count,.*psql"):
        run_sql(owner_url, "select lo_creat(-1)")


def test_a_role_that_may_only_read_is_made_and_taken_on_where_that_may_be_done(
    superuser_url: str,
) -> None:
    open_ledger(superuser_url)
    warnings: list[str] = []
    assert run_sql(superuser_url, "select current_user", warn=warnings.append)[1] == [(READER,)]
    assert warnings == []
    execute(superuser_url, f"set role {READER}", "select count(*) from attempt_time")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        execute(superuser_url, f"set role {READER}", "delete from notes")


def test_a_role_that_may_not_make_one_learns_how(owner_url: str, superuser_url: str) -> None:
    open_ledger(owner_url)
    warnings: list[str] = []
    query = "select current_user"
    [(user,)] = run_sql(owner_url, query, warn=warnings.append)[1]
    assert user in owner_url
    [warning] = warnings
    assert f"may also write, for there is no {READER}" in warning
    *_, result = warning.partition("To make it: ")
    statements = result.split("; ")
    exists = execute(superuser_url, f"select 1 from pg_roles where rolname = '{READER}'")
    execute(superuser_url, *(statements[1:] if exists else statements))
    assert run_sql(owner_url, query, warn=warnings.append)[1] == [(READER,)]
    assert len(warnings) == 1


def test_functions_and_operators_of_others_in_the_ledgers_schema_are_not_called(
    superuser_url: str, owner_url: str
) -> None:
    open_ledger(owner_url)
    stranger = f"stranger_{uuid.uuid4().hex}"
    execute(
        superuser_url,
        f"create role {stranger}",
        f"grant all on schema public to {stranger}",
        f"set role {stranger}",
        "create function public.lower(int) returns text language sql as 'select ''evil'''",
    )
    try:
        with pytest.raises(InvalidInput, match="lower, which the query would call on this server"):
            run_sql(owner_url, "select lower(1)")
        assert run_sql(owner_url, "select upper('x')")[1] == [("X",)]
    finally:
        execute(superuser_url, f"drop owned by {stranger}", f"drop role {stranger}")


def test_an_answer_that_memory_should_not_hold_is_refused(
    owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ledger(owner_url)
    monkeypatch.setattr("tracks_dagster.ledger.effects.database.sql_query.CELLS_MAX", 100)
    assert len(run_sql(owner_url, "select x, x from generate_series(1, 50) x")[1]) == 50
    with pytest.raises(InvalidInput, match="ask for fewer"):
        run_sql(owner_url, "select x, x from generate_series(1, 51) x")


def test_settings_of_the_role_do_not_change_an_answer(owner_url: str) -> None:
    open_ledger(owner_url)
    query = r"select 'a\', interval '36 hours', 1 = null, date '2026-02-01', 0.1::float8"
    plain = run_sql(owner_url, query)
    for setting in (
        "standard_conforming_strings = off",
        "transform_null_equals = on",
        "datestyle = 'German'",
        "extra_float_digits = -15",
        "timezone = 'Asia/Tokyo'",
        "search_path = public, pg_catalog",
        "default_transaction_read_only = off",
    ):
        execute(owner_url, f"alter role current_user set {setting}")
        assert run_sql(owner_url, query) == plain, setting
