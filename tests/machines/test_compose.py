"""What docker/compose.yaml says of the Ray cluster, of Prometheus and of every container's rights; nothing is started.

The services themselves are started by `make docker-test`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_core.launch.on_ray.ray_cluster import node_spec
from elastic_core.services.containers import POSTGRES, S3
from elastic_core.services.platform import platform_stack, service_settings
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from tests.e2e.platform import ROOT
from tests.launch.ray_nodes import TUNED

FOLDER = ROOT / "docker"
SIZES = ("small", "full", "ray")
NODES = ("ray-node-1", "ray-node-2", "ray-node-3")


def env_file(size: str) -> dict[str, str]:
    lines = (FOLDER / f"{size}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose(size: str = "ray") -> dict[str, Any]:
    """The file with its variables filled in, as Compose does: after it was parsed."""
    found: dict[str, Any] = filled(yaml.safe_load((FOLDER / "compose.yaml").read_text()), env_file(size))
    return found


def filled(value: Any, given: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: filled(each, given) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, given) for each in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: given.get(match[1]) or match[2], value)
    return value


SERVICES: dict[str, dict[str, Any]] = compose()["services"]


def words(service: str) -> list[str]:
    """Its whole command line."""
    return [*SERVICES[service].get("entrypoint", []), *SERVICES[service].get("command", [])]


def option(service: str, name: str) -> str:
    (value,) = [word.removeprefix(f"{name}=") for word in words(service) if word.startswith(f"{name}=")]
    return value


def mounted(service: str) -> dict[str, str]:
    """Volume or file by the path at which the container has it."""
    parts = [volume.split(":") for volume in SERVICES[service]["volumes"] if ":" in volume]
    return {part[1]: part[0] for part in parts}


@pytest.mark.parametrize("service", SERVICES)
def test_no_container_is_root_or_gains_rights_or_writes_where_it_need_not(service: str) -> None:
    facts = SERVICES[service]
    own_image = facts["image"] == compose()["x-image"]["image"]
    assert "USER 10001:10001" in (FOLDER / "Dockerfile").read_text()
    assert facts.get("user", "10001:10001" if own_image else "root") == "10001:10001"
    assert (facts["read_only"], facts["cap_drop"]) == (True, ["ALL"])
    assert facts["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_is_published_but_on_loopback(service: str) -> None:
    for port in SERVICES[service].get("ports", []):
        assert ipaddress.ip_address(port.split(":")[0]).is_loopback


@pytest.mark.parametrize("service", SERVICES)
def test_no_secret_is_in_an_environment_or_on_a_command_line(service: str) -> None:
    for name in SERVICES[service].get("environment", {}):
        assert not re.search(r"PASSWORD|SECRET_|TOKEN(?!_FILE|_PATH)", name), name
    assert not [word for word in words(service) if re.search(r"pass|token|secret", word, re.IGNORECASE)]


@pytest.mark.parametrize("size", SIZES)
def test_every_program_of_a_size_has_a_container(size: str, tmp_path: Path) -> None:
    services = compose(size)["services"]
    environment = services["scheduler"]["environment"]
    own = {name.removeprefix("ELASTIC_").lower(): value for name, value in environment.items() if "ELASTIC_" in name}
    assert own.keys() <= Settings.model_fields.keys()
    settings = service_settings(Settings(**{**own, "home": tmp_path, "project": ROOT}))
    profiles = set(filter(None, env_file(size)["COMPOSE_PROFILES"].split(",")))
    served = {
        facts["command"][2]
        for facts in services.values()
        if facts.get("command", [])[:2] == ["container", "serve"] and set(facts.get("profiles", [])) <= profiles
    }
    wanted = {program.name for program in platform_stack(settings, {}).programs()} | {POSTGRES}
    assert served == wanted | ({S3} if settings.s3_endpoint else set())
    assert profiles <= {profile for facts in services.values() for profile in facts.get("profiles", [])}


def test_services_find_the_clusters_head_by_its_name_with_the_token_that_is_prepared() -> None:
    environment = SERVICES["scheduler"]["environment"]
    assert environment["ELASTIC_LAUNCHER"] == "ray"
    assert env_file("ray")["WITH_RAY"] == SERVICES["scheduler"]["build"]["args"]["RAY"] == "yes"
    assert environment["ELASTIC_STORE"].startswith("s3://")  # that nodes share
    (alias,) = SERVICES["ray-state"]["networks"]["platform"]["aliases"]
    assert environment["ELASTIC_RAY_ADDRESS"] == f"http://{alias}:{option('ray-head', '--dashboard-port')}"
    for service in ("scheduler", "api-server", "ray-pool", "ray-head", *NODES):
        assert mounted(service)["/var/lib/elastic/ray"] == "ray"
        assert "ray:/var/lib/elastic/ray:ro" in SERVICES[service]["volumes"]
    assert mounted("prepare")["/var/lib/elastic/ray"] == "ray"
    assert environment["ELASTIC_RAY_TOKEN_FILE"] == "/var/lib/elastic/ray/token"


def test_a_head_that_is_started_anew_finds_its_state_at_the_address_that_it_had() -> None:
    head = SERVICES["ray-head"]
    assert head["network_mode"] == "service:ray-state"  # whose address stays
    host, _, port = head["environment"]["RAY_REDIS_ADDRESS"].partition(":")
    redis = words("ray-state")
    assert ipaddress.ip_address(host).is_loopback
    assert (redis[redis.index("--bind") + 1], redis[redis.index("--port") + 1]) == (host, port)
    assert redis[redis.index("--appendonly") + 1] == "yes"
    assert mounted("ray-state")[redis[redis.index("--dir") + 1]] == "ray-state"
    for node in NODES:  # which wait for it meanwhile
        assert int(SERVICES[node]["environment"]["RAY_gcs_rpc_server_reconnect_timeout_s"]) > 60


@pytest.mark.parametrize("service", ["ray-head", *NODES])
def test_rays_processes_want_the_token_know_soon_who_is_lost_and_have_no_service_secret(service: str) -> None:
    environment = SERVICES[service]["environment"]
    assert TUNED.items() <= environment.items()
    assert environment["RAY_AUTH_MODE"] == "token"
    assert Path(environment["RAY_AUTH_TOKEN_PATH"]) == Path("/var/lib/elastic/ray/token")
    assert "--block" in words(service)
    assert option(service, "--num-cpus") == "0"
    assert "state" not in mounted(service).values()
    assert not [name for name in environment if name.startswith("ELASTIC_")]


def test_three_nodes_have_two_slots_each_under_names_of_their_own() -> None:
    found = []
    for service in NODES:
        labels = dict(label.split("=") for label in option(service, "--labels").split(","))
        assert labels["elastic.node"] == option(service, "--node-name")
        assert option(service, "--address").partition(":")[0] == "ray-head"
        found.append(node_spec(labels, yaml.safe_load(option(service, "--resources")), "10.0.0.1"))
    assert found == [NodeSpec(name=f"node-{i}", type="cpu", slots=2, address="10.0.0.1") for i in (1, 2, 3)]
    home = SERVICES["scheduler"]["environment"]["ELASTIC_RAY_NODE_HOME"]
    assert all(home in SERVICES[service]["volumes"] for service in NODES)
    assert home in (FOLDER / "Dockerfile").read_text()  # and is the user's that Ray runs as


def test_prometheus_reads_the_platforms_metrics_with_the_rules_and_dashboards_names() -> None:
    ours = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (job,), (known,) = (
        ours["scrape_configs"],
        yaml.safe_load((ROOT / "monitoring/prometheus.yaml").read_text())["scrape_configs"],
    )
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert (host in SERVICES, port) == (True, "8080")
    files = mounted("prometheus")
    assert files["/etc/prometheus/alerts.yaml"] == "../monitoring/alerts.yaml"
    assert files[option("prometheus", "--config.file")] == "./prometheus.yaml"
    token = Path(job["authorization"]["credentials_file"])
    assert files[str(token.parent)] == "prometheus" == mounted("prepare")["/var/lib/elastic/prometheus"]
    assert Path(option("prometheus", "--storage.tsdb.path")).is_relative_to(token.parent)
    for one in (job, known):
        one["static_configs"], one["authorization"]["credentials_file"] = [], ""
    assert job == known
