"""The way from an Airflow task or trigger to the control plane: an Airflow Connection, and nothing else.

The connection (default id `elastic_control`) holds the base URL of the control API as its host and the service
secret as its password:

    AIRFLOW_CONN_ELASTIC_CONTROL='{"conn_type": "elastic", "host": "http://127.0.0.1:8080/elastic", "password": "..."}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from elastic_airflow.names import CONN_ID
from elastic_core.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

TASK_PATIENCE_SECONDS = 60.0  # of one call while the API is away: an API server restart takes 30 s
TRIGGER_PATIENCE_SECONDS = 5.0  # triggers back off by themselves


class ElasticHook(BaseHook):
    """Gives `ServiceControl` over HTTP. Make one per task run; the secret stays inside it."""

    conn_name_attr = "conn_id"
    default_conn_name = CONN_ID
    conn_type = "elastic"
    hook_name = "Elastic control plane"

    def __init__(self, conn_id: str = CONN_ID) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_conn(self) -> HttpControl:
        return self.connected(TASK_PATIENCE_SECONDS)

    def connected(self, patience_seconds: float) -> HttpControl:
        """`patience_seconds`: of one call while the API is away."""
        return _control(self.conn_id, self.get_connection(self.conn_id), patience_seconds)

    def keys(self) -> tuple[bytes, ...]:
        """With which tasks sign what they leave for each other (the first), and signed it before the last rotation."""
        return _keys(self.conn_id, self.get_connection(self.conn_id))

    async def akeys(self) -> tuple[bytes, ...]:
        return _keys(self.conn_id, await self.aget_connection(self.conn_id))

    async def aget_conn(self) -> HttpControl:
        return _control(self.conn_id, await self.aget_connection(self.conn_id), TRIGGER_PATIENCE_SECONDS)


def _control(conn_id: str, connection: Any, patience_seconds: float) -> HttpControl:
    from elastic_core.protocol.http_client import HttpControl  # heavy; tasks that never call do not pay for it

    _check_complete(conn_id, connection)
    return HttpControl(connection.host, connection.password.encode(), patience_seconds)


def _check_complete(conn_id: str, connection: Any) -> None:
    if not connection.host or not connection.password:
        raise UserError(
            f"Airflow connection {conn_id!r} has no {'host' if not connection.host else 'password'}: its host is the "
            "base URL of the control API, e.g. http://127.0.0.1:8080/elastic, and its password the service secret"
        )


def _keys(conn_id: str, connection: Any) -> tuple[bytes, ...]:
    """The connection's own, then what its file has: a rotation changes that at once, and the connection when Airflow's
    services are started anew."""
    from elastic_core.protocol.tokens import KeyFile
    from elastic_core.settings import Settings

    _check_complete(conn_id, connection)
    try:
        of_file = KeyFile(Settings().secret_file("control"))()
    except (InfrastructureError, ValueError):  # Airflow of another installation, which has the connection alone
        of_file = ()
    return (connection.password.encode(), *of_file)
