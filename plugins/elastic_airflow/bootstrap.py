"""`python -m elastic_airflow.bootstrap`: Airflow's database made or migrated, and the platform's connection in it.

One process for both, since starting Airflow's code is what takes the time. The connection `elastic_control` holds
the service secret, encrypted by Airflow's Fernet key; operators and triggers read it like any other. With `revisions`
it changes nothing, and says as a line of JSON at which migration the database is and which one Airflow's code expects.
"""

from __future__ import annotations

import json
import sys

from airflow.models.connection import Connection
from airflow.utils.db import _configured_alembic_environment, upgradedb
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from elastic_airflow.names import CONN_ID
from elastic_core.settings import Settings


def store_connection(settings: Settings) -> None:
    secret = settings.secret_file("control").read_text().strip()
    with create_session() as session:
        connection = session.scalar(select(Connection).where(Connection.conn_id == CONN_ID))
        if connection is None:
            connection = Connection(conn_id=CONN_ID, conn_type="http")
            session.add(connection)
        connection.host = settings.api_url()
        connection.password = secret
        connection.description = "The platform's control API (made by `elastic up`)"


def revisions() -> dict[str, str | None]:
    """`at` is None of a database that holds no tables of Airflow's; `problem`, alone, why it does not answer."""
    try:
        with _configured_alembic_environment() as environment:
            at, expected = environment.get_context().get_current_heads(), environment.script.get_heads()
    except SQLAlchemyError as error:
        return {"problem": str(error).splitlines()[0]}
    return {"at": ", ".join(sorted(at)) or None, "expected": ", ".join(sorted(expected))}


def main(arguments: list[str]) -> None:
    if arguments == ["revisions"]:
        sys.stdout.write(json.dumps(revisions()) + "\n")
        return
    upgradedb()
    store_connection(Settings())


if __name__ == "__main__":
    main(sys.argv[1:])
