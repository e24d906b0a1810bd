"""What deploy/kubernetes says fits Kubernetes' schemas, and the platform: its settings, services, nodes and secrets.

No Kubernetes runs here. The schemas are checked where `make kubernetes-check` has installed what checks them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_core.launch.on_ray import ray_cluster
from elastic_core.launch.on_ray.pool import drain_node
from elastic_core.services.containers import POSTGRES
from elastic_core.services.platform import platform_stack, service_environment
from elastic_core.settings import Settings
from tests.e2e.platform import ROOT
from tests.launch.ray_nodes import TUNED
from tests.required import lacks

FOLDER = ROOT / "deploy" / "kubernetes"
VALIDATE = ROOT / ".venv-kubernetes" / "bin" / "kubernetes-validate"


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
