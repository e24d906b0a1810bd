"""The certificate of an installation's own MLflow."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509

from elastic_core.services.certificates import DAYS, ensure_certificate
from elastic_core.settings import Settings

NOW = datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC)


def settings(home: Path) -> Settings:
    secrets = home / "secrets"
    return Settings(home=home, mlflow_host="mlflow", mlflow_certificate=secrets / "c.pem", mlflow_key=secrets / "k.pem")


def test_it_names_where_mlflow_is_and_where_browsers_have_it(tmp_path: Path) -> None:
    assert ensure_certificate(settings(tmp_path), NOW)
    made = x509.load_pem_x509_certificate((tmp_path / "secrets" / "c.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["mlflow", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert (tmp_path / "secrets" / "k.pem").stat().st_mode & 0o777 == 0o600


def test_it_stays_until_its_end_is_near(tmp_path: Path) -> None:
    ensure_certificate(settings(tmp_path), NOW)
    assert not ensure_certificate(settings(tmp_path), NOW + datetime.timedelta(days=300))
    assert ensure_certificate(settings(tmp_path), NOW + datetime.timedelta(days=DAYS - 30))


def test_a_certificate_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    own = Settings(home=tmp_path / "home", mlflow_certificate=tmp_path / "c.pem", mlflow_key=tmp_path / "k.pem")
    assert not ensure_certificate(own, NOW)
    assert not (tmp_path / "c.pem").exists()
