"""The real MLflow server of an installation, attacked: without a password, with one, and through its database.

What another user of the machine once could do: read the services' secrets, and have Airflow run a file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from elastic_core.host.mlflow_access import SERVICE_USER, authorization
from elastic_core.host.secret_files import write_secret
from elastic_core.services.secrets import read_secret
from elastic_core.track.mlflow_client import open_client
from tests.security.mlflow_process import CANARY, MlflowProcess, create

pytestmark = pytest.mark.e2e

# Every route of MLflow's, with its methods: asked of MLflow itself, in a process of its own.
LIST_ROUTES = """
import json, uvicorn
from mlflow.server.fastapi_app import app
from mlflow.server import app as flask
found = [(route.path, sorted(route.methods)) for route in app.routes if getattr(route, "methods", None)]
found += [(rule.rule, sorted(rule.methods)) for rule in flask.url_map.iter_rules()]
print("ROUTES" + json.dumps(found))
"""
OTHER_LOCATIONS = (
    "/etc", "file:///etc", "FILE:/etc", "./here", "s3://bucket/x", "http://127.0.0.1:1/x", "ftp://127.0.0.1/x",
    "sftp://127.0.0.1/x", "hdfs://127.0.0.1/x", "runs:/1/x", "elastic://job/checkpoints", "dbfs:/x", "gs://bucket/x",
    "mlflow-artifacts://127.0.0.1:1/x", "mlflow-artifacts:/../secrets", "mlflow-artifacts:/%2e%2e/secrets",
    "mlflow-artifacts:/%252e%252e/secrets", "MLFLOW-ARTIFACTS:/../x", "mlflow-artifacts:///a/../../x",
)  # fmt: skip


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowProcess]:
    process = MlflowProcess(tmp_path_factory.mktemp("installation"))
    process.start(
        # what a shell may have set, and must not count
        MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE="true",
        MLFLOW_SERVER_ENABLE_JOB_EXECUTION="true",
        _MLFLOW_SERVER_ARTIFACT_DESTINATION="/",
    )
    yield process
    process.stop()


@pytest.fixture
def admin(mlflow: MlflowProcess) -> Iterator[httpx.Client]:
    with mlflow.client() as client:
        yield client


@pytest.fixture
def strangers_folder() -> Iterator[Path]:
    """A folder of the system user `nobody`, with a link in it to the installation's secrets."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user of the machine")
    if shutil.which("curl") is None:
        pytest.skip("the other user needs a program that it may run: curl is not installed")
    folder = Path(tempfile.mkdtemp(prefix="elastic-stranger-"))
    shutil.chown(folder, "nobody")
    yield folder
    shutil.rmtree(folder)


def as_nobody(mlflow: MlflowProcess, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """Status and text of a request by a process of the user `nobody`."""
    command = ["curl", "-s", "-X", method, "-w", "\\n%{http_code}", f"{mlflow.settings.tracking_uri()}{path}"]
    if body is not None:
        command += ["-H", "content-type: application/json", "--data-binary", body]
    done = subprocess.run(
        command, user="nobody", group="nogroup", extra_groups=[], cwd="/", env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def landed(mlflow: MlflowProcess) -> list[str]:
    return [path.name for path in mlflow.dags.rglob("*")]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error_code"]


@cache
def routes() -> list[tuple[str, list[str]]]:
    done = subprocess.run([sys.executable, "-c", LIST_ROUTES], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("ROUTES"))
    found: list[tuple[str, list[str]]] = json.loads(line.removeprefix("ROUTES"))
    return found


# --- who asks


def test_no_route_of_mlflow_answers_without_a_password(mlflow: MlflowProcess) -> None:
    assert len(routes()) > 300, "MLflow was asked for its routes"
    open_routes = []
    with mlflow.client(user=None) as client:
        for path, methods in routes():
            filled = re.sub(r"<[^>]*>|{[^}]*}", "x", path)
            for method in methods:
                answer = client.request(method, filled)
                if answer.status_code != 401 or "www-authenticate" not in answer.headers:
                    open_routes.append((method, filled, answer.status_code))
    assert open_routes == []


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !", "Basic YWRtaW4=", "Basic YWRtaW46", "Bearer x", "Basic Og==", "Basic bm9ib2R5OngK"],
)
def test_a_wrong_login_is_refused(mlflow: MlflowProcess, header: str) -> None:
    with mlflow.client(user=None) as client:
        answer = client.get("/version", headers={"authorization": header})
    assert code_of(answer) == (401, "UNAUTHENTICATED")


def test_the_passwords_of_two_users_are_not_exchanged(mlflow: MlflowProcess) -> None:
    with mlflow.client(password=read_secret(mlflow.settings, "mlflow")) as client:
        assert client.get("/version").status_code == 401


def test_admin_and_the_platform_are_let_in_and_a_changed_password_holds_at_once(mlflow: MlflowProcess) -> None:
    with mlflow.client() as client:
        assert client.get("/").status_code == 200
    old = authorization(mlflow.settings)
    with mlflow.client(user=None) as client:
        assert client.get("/health", headers={"authorization": old}).text == "OK"
        write_secret(mlflow.settings.secret_file("mlflow"), "another")
        assert client.get("/health", headers={"authorization": old}).status_code == 401
        assert client.get("/health", headers={"authorization": authorization(mlflow.settings)}).status_code == 200


def test_a_page_of_another_origin_cannot_use_the_browsers_login(admin: httpx.Client) -> None:
    """Another port of this machine is another origin: any user may listen there."""
    address = f"http://{admin.base_url.netloc.decode()}"
    search = {"max_results": 1}
    for origin in ("http://localhost:9", "https://evil.example", "null"):
        answer = admin.post("/ajax-api/2.0/mlflow/experiments/search", json=search, headers={"origin": origin})
        assert code_of(answer) == (403, "PERMISSION_DENIED")
    fetched = {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}
    assert admin.get("/ajax-api/2.0/mlflow/experiments/get?experiment_id=0", headers=fetched).status_code == 403
    own = admin.post("/ajax-api/2.0/mlflow/experiments/search", json=search, headers={"origin": address})
    assert own.status_code == 200
    followed = {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert admin.get("/", headers=followed).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/gateway/mlflow/v1/chat/completions"),
        ("POST", "/ajax-api/2.0/mlflow/gateway-proxy"),
        ("POST", "/ajax-api/3.0/mlflow/gateway/secrets/create"),
        ("POST", "/ajax-api/3.0/mlflow/assistant/message"),
        ("POST", "/ajax-api/3.0/jobs/"),
        ("POST", "/ajax-api/3.0/mlflow/scorers/register"),
        ("POST", "/ajax-api/3.0/mlflow/scorer/invoke"),
        ("POST", "/api/2.0/mlflow/webhooks"),
        ("POST", "/api/3.0/mlflow/mcp-servers"),
        ("POST", "/api/3.0/mlflow/workspaces"),
        ("POST", "/ajax-api/2.0/mlflow/runs/create-promptlab-run"),
        ("POST", "/api/2.0/mlflow/artifacts/presigned-upload-url"),
        ("POST", "/v1/traces"),
        ("POST", "/api/2.0/mlflow/runs/../webhooks"),
        ("POST", "//api/2.0/mlflow/webhooks"),
        ("POST", "/api/2.0//mlflow/webhooks"),
    ],
)
def test_what_training_does_not_need_is_not_there_even_with_a_password(
    mlflow: MlflowProcess, method: str, path: str
) -> None:
    """Sent as it stands: httpx would tidy the path."""
    command = ["curl", "-s", "--path-as-is", "-X", method, "-d", "{}", "-o", "/dev/null", "-w", "%{http_code}"]
    command += ["-H", f"authorization: {authorization(mlflow.settings)}", mlflow.settings.tracking_uri() + path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "403"


# --- the two attacks, as they were


def test_another_user_of_the_machine_gets_no_secret(mlflow: MlflowProcess, strangers_folder: Path) -> None:
    (strangers_folder / "link").symlink_to(mlflow.settings.secret_file(""))
    experiment = {"name": "mine", "artifact_location": str(strangers_folder)}
    for path, body in (
        ("/api/2.0/mlflow/experiments/create", json.dumps(experiment)),
        ("/api/2.0/mlflow/runs/create", '{"experiment_id": "0"}'),
        ("/get-artifact?run_id=x&path=link/canary", None),
        ("/api/2.0/mlflow-artifacts/artifacts/x", None),
    ):
        status, text = as_nobody(mlflow, "POST" if body else "GET", path, body)
        assert status == 401
        assert CANARY not in text


def test_another_user_of_the_machine_places_no_dag(mlflow: MlflowProcess, strangers_folder: Path) -> None:
    experiment = {"name": "dags", "artifact_location": str(mlflow.dags)}
    assert as_nobody(mlflow, "POST", "/api/2.0/mlflow/experiments/create", json.dumps(experiment))[0] == 401
    upload = "/ajax-api/2.0/mlflow/upload-artifact?run_uuid=x&path=evil.py"
    assert as_nobody(mlflow, "POST", upload, "print()")[0] == 401
    assert as_nobody(mlflow, "PUT", "/api/2.0/mlflow-artifacts/artifacts/evil.py", "print()")[0] == 401
    assert landed(mlflow) == []
    assert not (mlflow.artifacts / "evil.py").exists()


def test_another_user_of_the_machine_reads_no_artifact_from_disk(
    mlflow: MlflowProcess, admin: httpx.Client, strangers_folder: Path
) -> None:
    assert admin.put("/api/2.0/mlflow-artifacts/artifacts/1/seen", content=b"x").status_code == 200
    path = mlflow.artifacts / "1" / "seen"
    assert path.read_bytes() == b"x"
    assert subprocess.run(["cat", path], user="nobody", cwd="/", capture_output=True, check=False).returncode != 0


# --- locations, with a user's password


@pytest.mark.parametrize("api", ["api", "ajax-api"])
@pytest.mark.parametrize("location", OTHER_LOCATIONS)
def test_an_experiment_cannot_have_its_artifacts_elsewhere(admin: httpx.Client, api: str, location: str) -> None:
    body = {"name": f"e-{uuid.uuid4().hex}", "artifact_location": location}
    answer = admin.post(f"/{api}/2.0/mlflow/experiments/create", json=body)
    assert code_of(answer) == (400, "INVALID_PARAMETER_VALUE")


@pytest.mark.parametrize("api", ["api", "ajax-api"])
@pytest.mark.parametrize("source", OTHER_LOCATIONS)
def test_a_model_version_cannot_have_its_source_elsewhere(admin: httpx.Client, api: str, source: str) -> None:
    name = f"m-{uuid.uuid4().hex}"
    create(admin, "registered-models/create", name=name)
    prompt = [{"key": "mlflow.prompt.is_prompt", "value": "true"}]
    for tags in ([], prompt):
        answer = admin.post(
            f"/{api}/2.0/mlflow/model-versions/create", json={"name": name, "source": source, "tags": tags}
        )
        assert code_of(answer) == (400, "INVALID_PARAMETER_VALUE")
    assert (
        "model_versions"
        not in admin.get("/api/2.0/mlflow/model-versions/search", params={"filter": f"name='{name}'"}).json()
    )


def test_its_own_locations_are_taken(admin: httpx.Client) -> None:
    for location in (None, f"mlflow-artifacts:/{uuid.uuid4().hex}"):
        named = {} if location is None else {"artifact_location": location}
        experiment = create(admin, "experiments/create", name=f"e-{uuid.uuid4().hex}", **named)["experiment_id"]
        run = create(admin, "runs/create", experiment_id=experiment)["run"]
        assert run["info"]["artifact_uri"].startswith(location or f"mlflow-artifacts:/{experiment}/")
        name = f"m-{uuid.uuid4().hex}"
        create(admin, "registered-models/create", name=name)
        source = run["info"]["artifact_uri"] + "/model"
        create(admin, "model-versions/create", name=name, source=source, run_id=run["info"]["run_id"])


# --- locations that came into the database before


class Planted:
    """An experiment, a run, a logged model, a version and a trace whose location in the database is a folder."""

    def __init__(self, mlflow: MlflowProcess, admin: httpx.Client, folder: Path) -> None:
        unique = uuid.uuid4().hex
        self.experiment = create(admin, "experiments/create", name=f"e-{unique}")["experiment_id"]
        run = create(admin, "runs/create", experiment_id=self.experiment)["run"]["info"]
        self.run, self.version = run["run_id"], f"m-{unique}"
        self.model = create(admin, "logged-models", experiment_id=self.experiment, name="m")["model"]["info"][
            "model_id"
        ]
        create(admin, "registered-models/create", name=self.version)
        create(admin, "model-versions/create", name=self.version, source=run["artifact_uri"] + "/m", run_id=self.run)
        self.trace = f"tr-{unique}"
        place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": self.experiment}}
        info = {"trace_id": self.trace, "trace_location": place, "request_time": "2026-01-01T00:00:00Z", "state": "OK"}
        made = admin.post("/api/3.0/mlflow/traces", json={"trace": {"trace_info": info}})
        assert made.status_code == 200, made.text
        for table, column, key, value in (
            ("experiments", "artifact_location", "experiment_id", self.experiment),
            ("runs", "artifact_uri", "run_uuid", self.run),
            ("logged_models", "artifact_location", "model_id", self.model),
            ("model_versions", "storage_location", "name", self.version),
        ):
            mlflow.plant(f"UPDATE {table} SET {column} = :folder WHERE {key} = :value", folder=str(folder), value=value)
        mlflow.plant(
            "UPDATE trace_tags SET value = :folder WHERE key = 'mlflow.artifactLocation' AND request_id = :trace",
            folder=str(folder), trace=self.trace,
        )  # fmt: skip

    def reads(self, path: str) -> dict[str, dict[str, str]]:
        """Every route that opens an artifact of one of these."""
        logged = f"/ajax-api/2.0/mlflow/logged-models/{self.model}/artifacts"
        return {
            "/get-artifact": {"run_id": self.run, "path": path},
            "/model-versions/get-artifact": {"name": self.version, "version": "1", "path": path},
            f"{logged}/files": {"artifact_file_path": path},
            f"{logged}/directories": {"artifact_directory_path": path},
            "/ajax-api/2.0/mlflow/artifacts/list": {"run_id": self.run, "path": path},
            "/api/2.0/mlflow/artifacts/list": {"run_id": self.run},
            "/ajax-api/3.0/mlflow/get-trace-artifact": {"request_id": self.trace, "path": path},
            "/ajax-api/2.0/mlflow/get-trace-artifact": {"request_id": self.trace, "path": path},
        }


def test_nothing_is_read_from_a_location_of_before(mlflow: MlflowProcess, admin: httpx.Client) -> None:
    """It leads into the secrets: no way of reading an artifact shows one, or that it is there."""
    planted = Planted(mlflow, admin, mlflow.settings.secret_file(""))
    shutil.copy(mlflow.canary, mlflow.settings.secret_file("traces.json"))
    for path, params in planted.reads("canary").items():
        answer = admin.get(path, params=params)
        assert (path, answer.status_code) == (path, 400)
        assert CANARY not in answer.text
        assert "is_dir" not in answer.text


def test_a_location_of_before_with_a_link_to_the_secrets_shows_none(
    mlflow: MlflowProcess, admin: httpx.Client, strangers_folder: Path
) -> None:
    (strangers_folder / "link").symlink_to(mlflow.settings.secret_file(""))
    planted = Planted(mlflow, admin, strangers_folder)
    for path, params in planted.reads("link/canary").items():
        answer = admin.get(path, params=params)
        assert (path, answer.status_code) == (path, 400)
        assert CANARY not in answer.text


def test_nothing_is_written_to_a_location_of_before_and_nothing_begun_there(
    mlflow: MlflowProcess, admin: httpx.Client
) -> None:
    planted = Planted(mlflow, admin, mlflow.dags)
    upload = {"run_uuid": planted.run, "path": "evil.py"}
    assert admin.post("/ajax-api/2.0/mlflow/upload-artifact", params=upload, content=b"print()").status_code == 400
    for what, body in (
        ("runs/create", {"experiment_id": planted.experiment}),
        ("logged-models", {"experiment_id": planted.experiment, "name": "m"}),
    ):
        answer = admin.post(f"/api/2.0/mlflow/{what}", json=body)
        assert (what, *code_of(answer)) == (what, 400, "INVALID_PARAMETER_VALUE")
    create(admin, "runs/delete", run_id=planted.run)
    assert admin.post("/api/2.0/mlflow/runs/restore", json={"run_id": planted.run}).status_code == 400
    create(admin, "experiments/delete", experiment_id=planted.experiment)
    again = admin.post("/api/2.0/mlflow/experiments/restore", json={"experiment_id": planted.experiment})
    assert code_of(again) == (400, "INVALID_PARAMETER_VALUE")
    assert landed(mlflow) == []


def test_the_platforms_own_client_writes_no_model_to_a_location_of_before(
    mlflow: MlflowProcess, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's client would write there itself: it takes the location's word."""
    from elastic_core.errors import UserError
    from elastic_core.track.mlflow_runs import Runs

    for name in ("USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")  # given back after the test
    name = f"elastic/{uuid.uuid4().hex}"
    experiment = create(admin, "experiments/create", name=name)["experiment_id"]
    mlflow.plant("UPDATE experiments SET artifact_location = :to WHERE name = :name", to=str(mlflow.dags), name=name)
    with pytest.raises(UserError, match=rf"experiment {name}.*{mlflow.dags}"):
        Runs(open_client(mlflow.settings), proxied_only=True).experiment(name)
    assert experiment


# --- links and ways up in the artifacts themselves


@pytest.fixture
def link(mlflow: MlflowProcess) -> Iterator[str]:
    """A link among the artifacts to the secrets."""
    path = mlflow.artifacts / "0" / f"link-{uuid.uuid4().hex}"
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(mlflow.settings.secret_file(""))
    yield f"0/{path.name}"
    path.unlink()


def test_a_link_in_the_artifacts_is_not_followed(mlflow: MlflowProcess, admin: httpx.Client, link: str) -> None:
    before = sorted(mlflow.settings.secret_file("").iterdir())
    for api in ("api", "ajax-api"):
        base = f"/{api}/2.0/mlflow-artifacts/artifacts"
        answers = [
            admin.get(f"{base}/{link}/canary"),
            admin.get(f"{base}/{link}"),
            admin.get(base, params={"path": link}),
            admin.put(f"{base}/{link}/planted", content=b"x"),
            admin.delete(f"{base}/{link}/canary"),
            admin.delete(f"{base}/{link}"),
        ]
        assert {answer.status_code for answer in answers} == {400}
        assert not any(CANARY in answer.text or '"canary"' in answer.text for answer in answers)
    assert sorted(mlflow.settings.secret_file("").iterdir()) == before
    assert mlflow.canary.read_text() == CANARY


def test_a_link_is_not_even_listed(admin: httpx.Client, link: str) -> None:
    listed = admin.get("/api/2.0/mlflow-artifacts/artifacts", params={"path": "0"})
    assert listed.status_code == 200
    assert link.partition("/")[2] not in listed.text


def test_a_runs_link_to_the_secrets_shows_none(mlflow: MlflowProcess, admin: httpx.Client) -> None:
    run = create(admin, "runs/create", experiment_id="0")["run"]["info"]["run_id"]
    folder = mlflow.artifacts / "0" / run / "artifacts"
    folder.mkdir(parents=True)
    (folder / "file").symlink_to(mlflow.canary)
    (folder / "folder").symlink_to(mlflow.dags)
    for path in ("file", "folder/x"):
        answer = admin.get("/get-artifact", params={"run_id": run, "path": path})
        assert answer.status_code == 400
        assert CANARY not in answer.text
    upload = {"run_uuid": run, "path": "folder/evil.py"}
    assert admin.post("/ajax-api/2.0/mlflow/upload-artifact", params=upload, content=b"print()").status_code == 400
    assert landed(mlflow) == []


@pytest.mark.parametrize("up", ["..", "%2e%2e", "%252e%252e", "..%2f..", "a/../..", "%2f"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_no_path_leads_up_out_of_the_artifacts(mlflow: MlflowProcess, up: str, method: str) -> None:
    address = f"{mlflow.settings.tracking_uri()}/api/2.0/mlflow-artifacts/artifacts/{up}/secrets/canary"
    command = ["curl", "-s", "--path-as-is", "-X", method, "-H", f"authorization: {authorization(mlflow.settings)}"]
    done = subprocess.run([*command, "-d", "x", address], capture_output=True, text=True, check=True)
    assert CANARY not in done.stdout
    assert mlflow.canary.read_text() == CANARY


# --- what must go on working


def test_the_platforms_client_logs_in_and_its_artifacts_come_back(
    mlflow: MlflowProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "of-the-shell")
    client = open_client(mlflow.settings)
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == SERVICE_USER
    experiment = client.create_experiment(f"e-{uuid.uuid4().hex}")
    model = client.create_logged_model(experiment, name="m")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "weights").write_bytes(os.urandom(1 << 20))
    client.log_model_artifacts(model.model_id, str(tmp_path / "in"))
    assert [info.path for info in client.list_logged_model_artifacts(model.model_id)] == ["weights"]
    run: Any = client.create_run(experiment)
    client.log_artifact(run.info.run_id, str(tmp_path / "in" / "weights"), "deep/er")
    found = client.download_artifacts(run.info.run_id, "deep/er/weights", str(tmp_path))
    assert Path(found).read_bytes() == (tmp_path / "in" / "weights").read_bytes()


def test_the_page_and_what_it_asks_for_a_run_are_there(admin: httpx.Client) -> None:
    page = admin.get("/").text
    scripts = re.findall(r'(?:src|href)="([^"]*static-files/[^"]*)"', page)
    assert scripts
    assert {admin.get("/" + script.lstrip("./")).status_code for script in scripts} == {200}
    run = create(admin, "runs/create", experiment_id="0")["run"]["info"]["run_id"]
    query = "query Q($i: MlflowGetRunInput!) { mlflowGetRun(input: $i) { run { info { runUuid artifactUri } } } }"
    asked = {"query": query, "variables": {"i": {"runId": run}}, "operationName": "Q"}
    shown = admin.post("/graphql", json=asked).json()["data"]["mlflowGetRun"]["run"]["info"]
    assert shown["runUuid"] == run
    assert admin.get("/ajax-api/3.0/mlflow/server-info").status_code == 200
