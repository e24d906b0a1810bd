"""What `elastic doctor` finds wrong, and what it says to do about it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from elastic_core.commands.installation import checks
from elastic_core.commands.installation.checks import Finding, Verdict
from elastic_core.errors import InfrastructureError
from elastic_core.host.network.exposed import is_exposed
from elastic_core.launch.on_ray import journal
from elastic_core.services.platform import platform_stack, service_environment, service_settings
from elastic_core.services.settings_in_force import record
from elastic_core.settings import Settings

ROOT = Path(__file__).parents[3]


def found(settings: Settings, check: str) -> Finding:
    return next(finding for finding in checks.all_findings(settings) if finding.check == check)


def test_pins_are_read_from_a_lock_with_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(
        "# made\nmoto[server]==5.1 \\\n    --hash=sha256:aa\ntorch==2.13.0 ; python_version > '3'\n-r x==1\n"
    )
    assert checks.pins(lock) == {"moto": "5.1", "torch": "2.13.0"}


def test_a_package_of_another_version_than_pinned_is_named_with_both(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text("rich==0.0.1\nno-such-package==1\n")
    (_, packages) = checks.python_and_packages(Settings(project=tmp_path))
    assert packages.verdict is Verdict.WARN
    assert "(0.0.1 is pinned)" in packages.says
    assert "no-such-package missing (1 is pinned)" in packages.says


def test_a_taken_port_is_a_failure_that_names_its_owner_and_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = service_settings(Settings(home=tmp_path, airflow_port=taken.getsockname()[1]))
        finding = checks.ports(settings, platform_stack(settings, {}), running=False)
    assert (finding.verdict, finding.do) == (Verdict.FAIL, "stop that process, or set ELASTIC_AIRFLOW_PORT")
    assert f"(pid {os.getpid()})" in finding.says


def test_settings_that_are_not_in_force_are_named(tmp_path: Path) -> None:
    settings = service_settings(Settings(home=tmp_path))
    record(tmp_path, service_environment(settings.model_copy(update={"policy": "sia"}), {}))
    finding = checks.in_force(settings)
    assert (finding.verdict, "ELASTIC_POLICY: sia -> horizon" in finding.says) == (Verdict.WARN, True)


def test_a_store_is_written_read_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert checks.store(Settings(home=tmp_path)).verdict is Verdict.OK
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_store_that_is_no_folder_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    finding = checks.store(Settings(home=tmp_path))
    assert (finding.verdict, finding.do.startswith("see ELASTIC_STORE")) == (Verdict.FAIL, True)


def test_a_cluster_file_that_is_none_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    assert checks.cluster(Settings(cluster=tmp_path / "cluster.json")).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("address", "interface", "exposed"),
    [
        ("127.0.0.1", None, False), ("10.1.2.3", "eth0", False), ("172.31.255.1", "eth0", False),
        ("192.168.0.7", "eth0", False), ("100.64.0.9", "eth0", False), ("10.255.255.255", "eth0", False),
        ("fd00::7", "eth0", False), ("::1", None, False),
        ("172.32.0.1", "eth0", True), ("100.128.0.1", "eth0", True), ("8.8.8.8", "eth0", True), ("8.8.8.8", None, True),
        ("2600::1", "eth0", True), ("8.8.8.8", "wg0", False), ("8.8.8.8", "tailscale0", False),
        ("8.8.8.8", "ipsec0", False), ("8.8.8.8", "wlan0", True),
    ],
)  # fmt: skip
def test_nodes_that_strangers_may_hear_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, interface: str | None, exposed: bool
) -> None:
    """`interface`: that has the address here; None: none has."""

    def interface_of(asked: str) -> str:
        if interface is None:
            raise InfrastructureError(f"No network interface here has {asked}")
        return interface

    monkeypatch.setattr("elastic_core.host.network.exposed.interface_of", interface_of)
    monkeypatch.setattr("elastic_core.host.this_machine.require_networks", lambda _spec: None)
    nodes = [{"name": "a", "type": "cpu", "slots": 2, "address": address}]
    (tmp_path / "cluster.json").write_text(json.dumps({"nodes": nodes}))
    finding = checks.cluster(Settings(cluster=tmp_path / "cluster.json"))
    assert finding.verdict is (Verdict.WARN if exposed else Verdict.OK), finding
    assert (f"a ({address})" in finding.says) is exposed
    assert ("encrypted overlay" in finding.do) is exposed


class RayHead(BaseHTTPRequestHandler):
    """Answers as Ray's Jobs API does about the job that looks at nodes; "" where that does not run."""

    said = ""

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/jobs/").removesuffix("/logs")
        body = {"logs": self.said} if self.path.endswith("/logs") else {"submission_id": name, "status": "RUNNING"}
        self.send_response(200 if self.said else 404)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def on_ray(tmp_path: Path) -> Iterator[Settings]:
    (tmp_path / "token").write_text("secret")
    with ThreadingHTTPServer(("127.0.0.1", 0), RayHead) as head:
        Thread(target=head.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{head.server_port}"
        yield Settings(home=tmp_path, launcher="ray", ray_address=address, ray_token_file=tmp_path / "token")
        head.shutdown()


@pytest.mark.parametrize(
    ("nodes", "unclean", "verdict", "says"),
    [
        (["a", "b"], {}, Verdict.OK, "slots of Ray nodes: 4 of h200"),
        (["a"], {"b": "it is mislabelled"}, Verdict.WARN, "2 of h200; without work yet are b: it is mislabelled"),
        ([], {}, Verdict.FAIL, "slots of Ray nodes: none"),
        (None, {}, Verdict.WARN, "Ray answers, and nobody looks which nodes it has"),
    ],
)
def test_of_an_installation_on_ray_the_pool_is_that_of_the_cluster(
    on_ray: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nodes: list[str] | None,
    unclean: dict[str, str], verdict: Verdict, says: str,
) -> None:  # fmt: skip
    if nodes is not None:
        pool = {"nodes": [{"name": name, "type": "h200", "slots": 2} for name in nodes], "draining": []}
        journal.say("pool", pool | {"unclean": unclean})
        monkeypatch.setattr(RayHead, "said", capsys.readouterr().out)
    finding = found(on_ray, "cluster")
    assert (finding.verdict, says in finding.says) == (verdict, True), finding
    assert bool(finding.do) is (verdict is not Verdict.OK)


def test_a_head_of_ray_that_is_away_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    settings = Settings(launcher="ray", ray_address="http://127.0.0.1:9", ray_token_file=tmp_path / "token")
    finding = checks.ray_cluster(settings)
    assert (finding.verdict, "Ray does not answer" in finding.says) == (Verdict.FAIL, True)
    assert finding.do.startswith("start Ray's head again")


def test_addresses_of_a_link_alone_are_private() -> None:
    assert not any(is_exposed(address) for address in ("169.254.3.4", "fe80::7", "::ffff:10.0.0.7"))
    assert is_exposed("::ffff:8.8.8.8")


@pytest.mark.parametrize("url", ["postgresql+psycopg2://nobody@127.0.0.1:9/none"])
def test_a_database_that_does_not_answer_is_a_failure(url: str, tmp_path: Path) -> None:
    finding = checks.ledger(Settings(home=tmp_path, ledger_url=url), running=False)
    assert (finding.check, finding.verdict) == ("ledger", Verdict.FAIL)


def test_a_ledger_before_its_upgrade_is_told_from_one_that_is_up_to_date(postgres_url: str, tmp_path: Path) -> None:
    from elastic_core.control.ledger import migrations

    settings = Settings(home=tmp_path, ledger_url=postgres_url)
    migrations.upgrade(postgres_url, "0012")
    assert checks.ledger(settings, running=False).verdict is Verdict.WARN
    migrations.upgrade(postgres_url)
    assert checks.ledger(settings, running=False).verdict is Verdict.OK


def test_wrong_settings_end_the_examination_with_what_they_are(tmp_path: Path) -> None:
    finding = found(Settings(home=tmp_path, lease_seconds=1), "settings")
    assert (finding.verdict, "ELASTIC_LEASE_SECONDS is 1" in finding.says) == (Verdict.FAIL, True)


def test_the_command_says_what_to_do_and_fails_where_something_is_wrong(tmp_path: Path) -> None:
    def doctor(**more: str) -> tuple[int, list[dict[str, str]]]:
        environment = {"ELASTIC_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", **more}
        command = [sys.executable, "-c", "from elastic_core.cli import app; app()", "doctor", "--json"]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout)

    code, findings = doctor(ELASTIC_AIRFLOW_PORT="0", ELASTIC_MLFLOW_PORT="0", ELASTIC_AIRFLOW_LOG_PORT="0",
                            ELASTIC_TRIGGERER_LOG_PORT="0")  # fmt: skip
    told = {finding["check"]: finding for finding in findings}
    assert (told["services"]["verdict"], told["services"]["do"]) == ("warn", "elastic up")
    assert code == any(finding["verdict"] == "fail" for finding in findings)
    code, findings = doctor(ELASTIC_LEASE_SECONDS="1")
    assert (code, findings[-1]["check"]) == (1, "settings")
