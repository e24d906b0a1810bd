"""A certificate for this installation's own MLflow, where its services are apart and nobody has given it one.

It signs itself and is trusted by the services alone, which have the file; browsers ask before they take it. Whoever has
certificates of their own puts their paths into the settings, and nothing is made here.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.host.secret_files import write_secret
from elastic_core.settings import Settings

if TYPE_CHECKING:
    from cryptography import x509

DAYS = 825
RENEW_DAYS = 90  # before its end, by who prepares the installation


def ensure_certificate(settings: Settings, now: datetime.datetime) -> bool:
    """Make the certificate and key that the settings place below <home>/secrets, or renew them; whether it did.

    `now`: with its time zone.
    """
    certificate, key, secrets = settings.mlflow_certificate, settings.mlflow_key, settings.secret_file("")
    if not certificate or not key or not all(path.is_relative_to(secrets) for path in (certificate, key)):
        return False
    if key.exists() and certificate.exists() and _days_left(certificate, now) > RENEW_DAYS:
        return False
    secrets.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = (settings.mlflow_host or settings.host, "localhost", "127.0.0.1")
    certificate_text, key_text = _make(tuple(dict.fromkeys(names)), now)
    write_secret(key, key_text)
    write_secret(certificate, certificate_text)
    return True


def _days_left(path: Path, now: datetime.datetime) -> float:
    from cryptography import x509

    return (x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc - now).total_seconds() / 86_400


def _make(names: Sequence[str], now: datetime.datetime) -> tuple[str, str]:
    """A certificate of these names and addresses, and its key, both PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
