"""What the embedded MLflow server, its callers and whoever starts it agree on: its accounts, its folder, its address.

The server asks everybody who they are: the platform's own processes by an account with a generated secret, people by
Airflow's user `admin` and that password. It imports no MLflow.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.settings import Settings

SERVICE_USER = "elastic"  # the platform's own processes: tracker, operators, command line
ADMIN = "admin"  # the user of Airflow's SimpleAuthManager
SECRET = "mlflow"  # below <home>/secrets, as are Airflow's passwords
PASSWORDS = "airflow_passwords"


def accounts(settings: Settings) -> dict[str, str]:
    """Password by user name, of all that the server lets in. Raises `FileNotFoundError` before `elastic up`."""
    passwords: dict[str, str] = json.loads(settings.secret_file(PASSWORDS).read_text())
    return {ADMIN: passwords[ADMIN], SERVICE_USER: settings.secret_file(SECRET).read_text().strip()}


def service_password(settings: Settings) -> str:
    """Raises `UserError` where `elastic up` has not made it, or the caller may not read it."""
    path = settings.secret_file(SECRET)
    try:
        return path.read_text().strip()
    except (FileNotFoundError, PermissionError) as error:
        raise UserError(
            f"The password of MLflow's user {SERVICE_USER!r} cannot be read from {path} ({error.strerror}). "
            "`elastic up` makes it; run this as the user of the services, with their ELASTIC_HOME."
        ) from None


def authorization(settings: Settings) -> str:
    """Value of the header `Authorization` of the platform's own requests. Raises as `service_password`."""
    return basic(SERVICE_USER, service_password(settings))


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def artifact_folder(settings: Settings) -> Path:
    return settings.home.absolute() / "mlflow"


def require_safe(settings: Settings) -> None:
    """Refuse a folder or an address at which the embedded server would be a way into the installation.

    Raises `UserError`. Links are followed before the folder is judged.
    """
    folder, dags = artifact_folder(settings).resolve(), (settings.project / "dags").resolve()
    secrets = settings.secret_file("").resolve()
    for protected, why in ((dags, "Airflow runs every file there"), (secrets, "it holds the secrets")):
        if folder.is_relative_to(protected) or protected.is_relative_to(folder):
            raise UserError(
                f"MLflow's artifacts would be in {folder}, and {protected} is not apart from that: {why}. Choose "
                "another ELASTIC_HOME, and let <home>/mlflow be a folder of its own."
            )
    _require_safe_address(settings)


def _require_safe_address(settings: Settings) -> None:
    certificate, key = settings.mlflow_certificate, settings.mlflow_key
    if (certificate is None) != (key is None):
        raise UserError(
            f"ELASTIC_MLFLOW_CERTIFICATE is {certificate} and ELASTIC_MLFLOW_KEY is {key}: TLS needs both, or neither."
        )
    for path in (certificate, key, settings.mlflow_ca):
        if path is not None and not path.is_file():
            raise UserError(f"{path} is no file: the TLS of MLflow cannot be set up with it.")
    host, setting = settings.mlflow_host or settings.host, "MLFLOW_HOST" if settings.mlflow_host else "HOST"
    listens = settings.listens_on(settings.mlflow_host)
    if is_loopback(host) and is_loopback(listens):
        return
    if certificate is None:
        open_setting, open_host = (setting, host) if not is_loopback(host) else ("LISTEN_HOST", listens)
        raise UserError(
            f"ELASTIC_{open_setting} is {open_host!r}, which other machines reach, and MLflow would send passwords in "
            "the clear. Set ELASTIC_MLFLOW_CERTIFICATE and ELASTIC_MLFLOW_KEY (PEM files; ELASTIC_MLFLOW_CA too, "
            f"unless the system trusts the issuer), or leave ELASTIC_{open_setting} at 127.0.0.1 with a proxy that "
            "speaks TLS before it, or set ELASTIC_MLFLOW_URI to a server of your own, or to 'none'."
        )
    if host in ("0.0.0.0", "::"):
        raise UserError(
            f"ELASTIC_{setting} is {host!r}, which no certificate can name. Set it to the machine's name or "
            "address as the certificate of ELASTIC_MLFLOW_CERTIFICATE has it."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. Names are not resolved: all but `localhost` may lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
