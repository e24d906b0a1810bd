"""MLflow over TLS, with a certificate that the system does not know: for what a bind beyond loopback needs."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from elastic_core.track.mlflow_client import open_client
from tests.security.mlflow_process import MlflowProcess

pytestmark = pytest.mark.e2e


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Files of a certificate for 127.0.0.1, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    return certificate_file, key_file


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowProcess]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = self_signed(folder)
    tls = {"mlflow_certificate": certificate, "mlflow_key": key, "mlflow_ca": certificate}
    process = MlflowProcess(folder, **tls)
    process.start()
    yield process
    process.stop()


def test_the_platforms_client_trusts_its_certificate_and_logs_in(
    mlflow: MlflowProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USERNAME", "PASSWORD", "SERVER_CERT_PATH"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")
    client = open_client(mlflow.settings)
    (tmp_path / "file").write_text("over TLS")
    run = client.create_run("0").info.run_id
    client.log_artifact(run, str(tmp_path / "file"))
    assert Path(client.download_artifacts(run, "file")).read_text() == "over TLS"


def test_without_its_certificate_or_without_tls_there_is_no_talking(mlflow: MlflowProcess) -> None:
    address = mlflow.settings.tracking_uri()
    assert address.startswith("https://")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(address)
    with pytest.raises(httpx.TransportError):
        httpx.get(address.replace("https", "http"))
