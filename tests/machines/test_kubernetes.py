"""What deploy/kubernetes says fits Kubernetes' schemas, and the platform: its settings, services, nodes and secrets.

No Kubernetes runs here. The schemas are checked where `make kubernetes-check` has installed what checks them.
"""

from __future__ import annotations

import ipaddress
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from elastic_core.launch.on_ray import ray_cluster
from elastic_core.launch.on_ray.pool import drain_node
from elastic_core.services import own_health
from elastic_core.services.containers import POSTGRES, program_of
from elastic_core.services.platform import platform_stack, service_environment, service_settings
from elastic_core.settings import Settings
from tests.e2e.platform import ROOT
from tests.launch.ray_nodes import TUNED
from tests.required import lacks

FOLDER = ROOT / "deploy" / "kubernetes"
VALIDATE = ROOT / ".venv-kubernetes" / "bin" / "kubernetes-validate"


POD_IP = "10.244.1.7"
IN_A_POD = {POD_IP, "0.0.0.0", "::"}  # addresses that a pod can listen on; a Service's is none of them
# Fields of KubeRay 1.6's RayCluster (ray.io/v1), and values of Airflow's chart 1.18: what is none of them is refused,
# or, worse, passed over. No more is known of either here.
RAY_CLUSTER = {
    "authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec",
    "headServiceAnnotations", "managedBy", "rayVersion", "suspend", "upgradeStrategy", "workerGroupSpecs",
}  # fmt: skip
RAY_HEAD = {"enableIngress", "headService", "labels", "rayStartParams", "resources", "serviceType", "template"}
RAY_WORKERS = {
    "groupName", "idleTimeoutSeconds", "labels", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams",
    "replicas", "resources", "scaleStrategy", "suspend", "template",
}  # fmt: skip
CHART = {
    "airflowVersion", "config", "data", "env", "executor", "gid", "images", "postgresql", "uid", "volumeMounts",
    "volumes",
}  # fmt: skip


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


PLATFORM: list[dict[str, Any]] = load("platform.yaml")["items"]
CLUSTER = load("ray-cluster.yaml")
VALUES = load("airflow-values.yaml")
TASK = load("pod-template.yaml")


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and pod spec of everything that runs containers."""
    for item in PLATFORM:
        if "template" in item.get("spec", {}):
            yield f"{item['kind']} {item['metadata']['name']}", item["spec"]["template"]["spec"]
    yield "Ray head", CLUSTER["spec"]["headGroupSpec"]["template"]["spec"]
    for group in CLUSTER["spec"]["workerGroupSpecs"]:
        yield f"Ray group {group['groupName']}", group["template"]["spec"]
    yield "task", TASK["spec"]


def of_service(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod and its one container that a Service leads to."""
    (selector,) = [
        item["spec"]["selector"] for item in PLATFORM if item["kind"] == "Service" and item["metadata"]["name"] == name
    ]
    templates = [item["spec"]["template"] for item in PLATFORM if "template" in item.get("spec", {})]
    (spec,) = [template["spec"] for template in templates if template["metadata"]["labels"] == selector]
    (container,) = spec["containers"]
    return spec, container


def settings_of(container: dict[str, Any], home: Path) -> Settings:
    """As the container's own environment gives them, in a pod of the address `POD_IP`."""
    given = dict(settings())
    for entry in container.get("env", []):
        of_pod = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") == "status.podIP"
        given[entry["name"]] = POD_IP if of_pod else entry["value"]
    own = {name.removeprefix("ELASTIC_").lower(): value for name, value in given.items() if "ELASTIC_" in name}
    return service_settings(Settings(**{**own, "home": home, "project": ROOT}))


def settings() -> dict[str, str]:
    (config,) = [item for item in PLATFORM if item["kind"] == "ConfigMap"]
    found: dict[str, str] = config["data"]
    return found


@pytest.mark.nightly
def test_everything_fits_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    if not VALIDATE.exists():
        lacks("kubernetes", "`make kubernetes-check` installs what checks this")
    documents = [*PLATFORM, TASK]
    documents += [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": re.sub("[^a-z0-9]", "-", name.lower())}, "spec": spec}
        for name, spec in pods()
        if name.startswith("Ray")
    ]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(documents))
    done = subprocess.run([VALIDATE, "--strict", tmp_path / "all.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == len(documents)


def test_every_setting_is_one_of_the_platforms_and_they_make_an_installation(tmp_path: Path) -> None:
    of_chart = {entry["name"]: entry["value"] for entry in VALUES["env"]}
    for given in (settings(), of_chart):
        own = {name.removeprefix("ELASTIC_").lower(): value for name, value in given.items() if "ELASTIC_" in name}
        assert own.keys() <= Settings.model_fields.keys()
        known = Settings(**{**own, "home": tmp_path, "project": ROOT})
        assert (known.launcher, known.ray_token_file) == ("ray", Path("/etc/elastic/ray/auth_token"))
    assert of_chart["ELASTIC_RAY_NODE_HOME"] == settings()["ELASTIC_RAY_NODE_HOME"]


def test_each_service_of_the_platform_has_a_pod_and_every_pod_serves_one(tmp_path: Path) -> None:
    own = {name.removeprefix("ELASTIC_").lower(): value for name, value in settings().items() if "ELASTIC_" in name}
    known = Settings(**{**own, "home": tmp_path, "project": ROOT})
    programs = {program.name for program in platform_stack(known, service_environment(known, {})).programs()}
    served = {}
    for item in PLATFORM:
        if item["kind"] in ("Deployment", "StatefulSet"):
            (container,) = item["spec"]["template"]["spec"]["containers"]
            assert container["args"][:2] == ["container", "serve"]
            served[container["args"][2]] = item
            checked = container.get("readinessProbe", {}).get("exec", {}).get("command", [])[-1:]
            assert checked in ([], [container["args"][2]])
    assert served.keys() == programs | {POSTGRES}
    for name in (POSTGRES, "tracker", "ray-pool", "scheduler"):  # of which there may be one at a time
        item = served[name]
        assert item["spec"]["replicas"] == 1
        assert item["kind"] == "StatefulSet" or item["spec"]["strategy"] == {"type": "Recreate"}


def test_hosts_in_settings_are_services_that_lead_to_pods() -> None:
    services = {item["metadata"]["name"]: item["spec"] for item in PLATFORM if item["kind"] == "Service"}
    hosts = {value for name, value in settings().items() if name.endswith("_HOST")}
    assert hosts == services.keys()
    labels = [item["spec"]["template"]["metadata"]["labels"] for item in PLATFORM if "template" in item.get("spec", {})]
    for spec in services.values():
        assert spec["selector"] in labels
    assert (
        settings()["ELASTIC_RAY_ADDRESS"] == f"http://{CLUSTER['metadata']['name']}-head-svc:8265"
    )  # as KubeRay names it


def test_servers_listen_on_addresses_of_their_own_pod(tmp_path: Path) -> None:
    for name, option in ((POSTGRES, "--listen_addresses={}"), ("api-server", "--host {} ")):
        known = settings_of(of_service(name)[1], tmp_path)
        command = " ".join(program_of(known, {}, name).command) + " "
        assert any(option.format(address) in command for address in IN_A_POD), command
    assert settings_of(of_service("mlflow")[1], tmp_path).listens_on("mlflow") in IN_A_POD
    for name in ("api-server", "mlflow"):  # `kubectl port-forward` comes by the pod's loopback
        assert settings_of(of_service(name)[1], tmp_path).listen_host in ("0.0.0.0", "::")


def test_a_pod_is_asked_at_its_own_address_whether_it_is_ready(tmp_path: Path) -> None:
    for name in ("api-server", "mlflow"):  # PostgreSQL is asked by its Unix socket
        known = settings_of(of_service(name)[1], tmp_path)
        assert own_health.own_address(known, name) in (POD_IP, "127.0.0.1", "::1")


def test_postgres_lets_pods_of_all_nodes_in_and_keeps_its_data_below_the_root_of_its_own_volume(tmp_path: Path) -> None:
    spec, container = of_service(POSTGRES)
    known = settings_of(container, tmp_path)
    networks = [ipaddress.ip_network(network) for network in known.postgres_networks.split(",")]
    for pod in (POD_IP, "192.168.77.3", "100.64.9.1", "fd00:10:244::9"):  # usual networks of pods
        assert any(ipaddress.ip_address(pod) in network for network in networks), pod
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert "postgres" not in {volume["name"] for volume in spec["volumes"]}  # a claim of its own
    assert known.postgres_folder() != mounts["postgres"]
    assert known.postgres_folder().is_relative_to(mounts["postgres"])
    assert not mounts["postgres"].is_relative_to(mounts["state"])


def test_tasks_report_to_the_api_server_and_not_to_their_own_container() -> None:
    (base,) = TASK["spec"]["containers"]
    environ = {entry["name"]: entry["value"] for entry in base["env"]}
    of_chart = {entry["name"]: entry["value"] for entry in VALUES["env"]}
    for reports, control in (
        (environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"], settings()["ELASTIC_CONTROL_URL"]),
        (VALUES["config"]["core"]["execution_api_server_url"], of_chart["ELASTIC_CONTROL_URL"]),
    ):
        assert urlsplit(reports).path == "/execution/"
        assert urlsplit(reports).netloc == urlsplit(control).netloc


def test_the_cluster_has_fields_of_kuberay_and_the_values_are_the_charts() -> None:
    assert CLUSTER["apiVersion"] == "ray.io/v1"
    assert CLUSTER["kind"] == "RayCluster"
    spec = CLUSTER["spec"]
    assert spec.keys() <= RAY_CLUSTER
    assert spec["authOptions"].keys() <= {"mode", "secretName", "enableK8sTokenAuth"}
    for group, fields in (
        (spec["headGroupSpec"], RAY_HEAD),
        *((each, RAY_WORKERS) for each in spec["workerGroupSpecs"]),
    ):
        assert group.keys() <= fields
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert VALUES.keys() == CHART
    assert VALUES["images"]["airflow"].keys() == {"repository", "tag"}
    assert (VALUES["data"].keys(), VALUES["postgresql"].keys()) == ({"metadataSecretName"}, {"enabled"})


@pytest.mark.parametrize(("name", "spec"), list(pods()), ids=lambda value: value if isinstance(value, str) else "")
def test_no_container_runs_as_root_or_gains_rights_or_gets_a_key_of_the_cluster(
    name: str, spec: dict[str, Any]
) -> None:
    assert spec["securityContext"]["runAsUser"] == 10001, name
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in spec["volumes"]} | {"postgres"}
    for volume in spec["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o440


def test_a_pod_of_ray_is_a_node_of_the_pool_and_is_drained_before_it_ends() -> None:
    assert CLUSTER["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token", "secretName": "ray-token"}
    pin = next(line for line in (ROOT / "requirements-ray.lock").read_text().splitlines() if line.startswith("ray=="))
    assert pin.split()[0] == f"ray=={CLUSTER['spec']['rayVersion']}"
    for group in CLUSTER["spec"]["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        (command,) = container["args"]
        assert f'--labels="{ray_cluster.NODE_LABEL}=$POD_NAME,{ray_cluster.PRICE_LABEL}=$SLOT_PRICE"' in command
        assert f'"{{\\"{ray_cluster.SLOT_RESOURCE}$SLOT_TYPE\\": $SLOTS}}"' in command
        environ = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert environ["SLOTS"] == container["resources"]["limits"]["nvidia.com/gpu"]
        drained = container["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert f'-m {drain_node.__name__} --node "$POD_NAME"' in drained
        assert f"--home {settings()['ELASTIC_RAY_NODE_HOME']}" in drained
        seconds = int(drained.partition("--seconds ")[2].split()[0])
        assert seconds < group["template"]["spec"]["terminationGracePeriodSeconds"]
        homes = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert settings()["ELASTIC_RAY_NODE_HOME"] in homes


def test_a_head_of_ray_is_tuned_alike_wherever_it_is_started() -> None:
    (head,) = CLUSTER["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert TUNED.items() <= {entry["name"]: entry.get("value") for entry in head["env"]}.items()
    for path in ("docs/guide/machines.md", "deploy/slurm/ray-cluster.sbatch"):
        exported = re.findall(r"\b(RAY_\w+)=([0-9]+)", (ROOT / path).read_text())
        assert TUNED.items() <= dict(exported).items(), path


def test_nodes_of_ray_are_tuned_as_their_head_but_for_what_concerns_jobs() -> None:
    of_nodes = {name: value for name, value in TUNED.items() if not name.startswith("RAY_JOB_")}
    for group in CLUSTER["spec"]["workerGroupSpecs"]:
        (node,) = group["template"]["spec"]["containers"]
        assert of_nodes.items() <= {entry["name"]: entry.get("value") for entry in node["env"]}.items()
