"""Settings under which MLflow would be a way into the installation are refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_core.errors import UserError
from elastic_core.host.mlflow_access import service_password
from elastic_core.services.platform import prepare_home
from elastic_core.settings import Settings
from elastic_core.track.mlflow_server.front_door import served
from elastic_core.track.mlflow_server.guarded_stores import is_own


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    path = tmp_path / "some.pem"
    path.write_text("PEM")
    return path


def prepare(tmp_path: Path, **changes: Any) -> Settings:
    settings = Settings(**{"home": tmp_path / "home", "project": tmp_path / "project", **changes})
    prepare_home(settings)
    return settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_certificate(tmp_path: Path, host: str) -> None:
    assert prepare(tmp_path, host=host).tracking_uri().startswith("http://")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "node.example", "localhost.example"])
def test_an_address_that_others_reach_is_refused_without_tls(tmp_path: Path, host: str) -> None:
    with pytest.raises(
        UserError, match=rf"ELASTIC_HOST is '{host}'.*ELASTIC_MLFLOW_CERTIFICATE and ELASTIC_MLFLOW_KEY"
    ):
        prepare(tmp_path, host=host)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("elsewhere", ["https://mlflow.example", "none"])
def test_where_mlflow_is_not_started_here_any_address_will_do(tmp_path: Path, elsewhere: str) -> None:
    prepare(tmp_path, host="192.0.2.7", mlflow_uri=elsewhere)


def test_with_tls_another_address_is_taken_if_a_certificate_can_name_it(tmp_path: Path, pem: Path) -> None:
    tls = {"mlflow_certificate": pem, "mlflow_key": pem}
    assert prepare(tmp_path, host="192.0.2.7", **tls).tracking_uri() == "https://192.0.2.7:5000"
    with pytest.raises(UserError, match=r"ELASTIC_HOST is '0\.0\.0\.0', which no certificate can name"):
        prepare(tmp_path, host="0.0.0.0", **tls)


def test_half_of_tls_is_refused(tmp_path: Path, pem: Path) -> None:
    with pytest.raises(UserError, match=r"ELASTIC_MLFLOW_KEY is None: TLS needs both"):
        prepare(tmp_path, mlflow_certificate=pem)
    with pytest.raises(UserError, match=r"nowhere\.pem is no file"):
        prepare(tmp_path, mlflow_certificate=pem, mlflow_key=tmp_path / "nowhere.pem")


def test_artifacts_among_the_dags_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"artifacts would be in .*dags/inside/mlflow.*Airflow runs every file there"):
        prepare(tmp_path, home=tmp_path / "project" / "dags" / "inside")


@pytest.mark.parametrize("target", ["project/dags", "project/dags/below", "home/secrets", "project", "."])
def test_a_link_to_the_dags_or_the_secrets_is_no_folder_for_artifacts(tmp_path: Path, target: str) -> None:
    (tmp_path / target).mkdir(parents=True, exist_ok=True)
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "mlflow").symlink_to(tmp_path / target)
    with pytest.raises(UserError, match="let <home>/mlflow be a folder of its own"):
        prepare(tmp_path)


def test_the_platforms_password_is_made_for_its_owner_only(tmp_path: Path) -> None:
    settings = prepare(tmp_path)
    assert len(service_password(settings)) >= 24
    assert settings.secret_file("mlflow").stat().st_mode & 0o777 == 0o600


def test_without_the_password_it_is_said_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read from .*secrets/mlflow.*`elastic up` makes it"):
        service_password(Settings(home=tmp_path))


@pytest.mark.parametrize(
    ("location", "own"),
    [
        ("mlflow-artifacts:/3", True),
        ("mlflow-artifacts:/3/with..dots/a b", True),
        ("mlflow-artifacts:///3", True),
        ("mlflow-artifacts:/", True),
        ("mlflow-artifacts:3", False),
        ("mlflow-artifacts://host/3", False),
        ("mlflow-artifacts:/3?x=1", False),
        ("mlflow-artifacts:/3#x", False),
        ("mlflow-artifacts:/a/../../x", False),
        ("mlflow-artifacts:/a\\..\\x", False),
        ("mlflow-artifacts://[x/", False),
        (" mlflow-artifacts:/3", False),
        ("/etc", False),
        ("", False),
    ],
)
def test_which_locations_are_the_servers_own(location: str, own: bool) -> None:
    assert is_own(location) is own


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/", True),
        ("/static-files/static/js/main.js", True),
        ("/ajax-api/2.0/mlflow/runs/search", True),
        ("/api/2.0/mlflow/logged-models/m-1/artifacts/files", True),
        ("/api/2.0/mlflow-artifacts/artifacts", True),
        ("/api/2.0/mlflow-artifacts/mpu/create/x", False),
        ("/api/2.0/mlflow-artifacts/artifactsx", False),
        ("/api/2.0/mlflow/runs-of-others", False),
        ("/api/4.0/mlflow/runs/create", False),
        ("/ajax-api/2.0/mlflow/runs/create-promptlab-run", False),
        ("/v1/traces", False),
        ("", False),
    ],
)
def test_which_routes_are_served(path: str, there: bool) -> None:
    assert served(path) is there
