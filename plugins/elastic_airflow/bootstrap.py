"""`python -m elastic_airflow.bootstrap`: Airflow's database made or migrated, and the platform's connection in it.

One process for both, since starting Airflow's code is what takes the time. The connection `elastic_control` holds
the service secret, encrypted by Airflow's Fernet key; operators and triggers read it like any other.
"""

from __future__ import annotations

from airflow.models.connection import Connection
from airflow.utils.db import upgradedb
from airflow.utils.session import create_session
from sqlalchemy import select

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


def main() -> None:
    upgradedb()
    store_connection(Settings())


if __name__ == "__main__":
    main()
