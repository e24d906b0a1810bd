"""What `elastic doctor` looks at, each as one `Finding`: nothing here changes anything but a probe in the store.

A check never raises for what it looks at: that is its finding. Those of services are asked only where the services run.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from elastic_core.commands.installation import databases
from elastic_core.commands.installation.databases import ledger
from elastic_core.commands.installation.finding import Finding, Verdict
from elastic_core.errors import ElasticError
from elastic_core.services import settings_in_force
from elastic_core.services import stack as services
from elastic_core.services.platform import platform_stack, service_environment, service_settings
from elastic_core.services.ports import is_free, owner
from elastic_core.services.supervision.program import Stack
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from elastic_core.text import size_text

LEAST_FREE = 2 * 2**30  # bytes of the home's disk
LEAST_SHARED = 128 * 2**20  # bytes of /dev/shm: a tile for each of a few ranks
SHARED = Path("/dev/shm")
NOTIFIERS = "elastic_airflow.notifications.notifier_setting"  # run as a program: it says what they are
LOAD_SECONDS = 120.0  # that loading Airflow and the operator's own code may take
OFTEN_WRONG = ("apache-airflow", "mlflow", "torch", "scikit-learn", "sqlalchemy", "fastapi", "pydantic")


def all_findings(settings: Settings) -> Iterator[Finding]:
    """In the order in which to mend them. `settings` as they are read."""
    yield from python_and_packages(settings)
    try:
        settings = service_settings(settings)
        stack = platform_stack(settings, service_environment(settings, os.environ))
    except ElasticError as error:
        yield Finding(check="settings", verdict=Verdict.FAIL, says=str(error), do="set it as the message says")
        return
    yield in_force(settings)
    yield home_folder(settings)
    yield shared_memory()
    yield ray_cluster(settings) if settings.launcher == "ray" else cluster(settings)
    yield notifiers(settings)
    states = services.status(stack) if settings.home.exists() else []
    running = any(service.pid for service in states)
    yield ports(settings, stack, running)
    yield from service_health(states, running)
    yield ledger(settings, running)
    yield databases.airflow(settings, running)
    yield databases.mlflow(settings, running)
    yield store(settings)


def python_and_packages(settings: Settings) -> Iterator[Finding]:
    here = platform.python_version()
    right = sys.version_info[:2] == (3, 11)
    yield Finding(
        check="python", verdict=Verdict.OK if right else Verdict.FAIL, says=f"Python {here}",
        do="" if right else "the platform is for Python 3.11: make PYTHON=python3.11 setup",
    )  # fmt: skip
    pinned, wrong = pins(settings.project / "requirements.lock"), []
    for name in pinned or OFTEN_WRONG:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "missing"
        want = pinned.get(name)
        if found == "missing" or (want is not None and found.partition("+")[0] != want):
            wrong.append(f"{name} {found}" + (f" ({want} is pinned)" if want else ""))
    known = ", ".join(f"{name} {_version(name)}" for name in OFTEN_WRONG[:3])
    more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
    yield Finding(
        check="packages", verdict=Verdict.WARN if wrong else Verdict.OK,
        says=f"not as in requirements.lock: {'; '.join(wrong[:10])}{more}" if wrong else known,
        do="make setup, in the project's folder" if wrong else "",
    )  # fmt: skip


def pins(lock: Path) -> dict[str, str]:
    """Versions by name; {} where there is no lock."""
    if not lock.is_file():
        return {}
    lines = (line.split(";")[0].split() for line in lock.read_text().splitlines() if "==" in line)
    named = (words[0].partition("==") for words in lines if words and not words[0].startswith(("#", "-")))
    return {name.partition("[")[0]: version for name, _, version in named if version}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def in_force(settings: Settings) -> Finding:
    changed = settings_in_force.differences(settings.home, service_environment(settings, os.environ))
    if not changed:
        return Finding(
            check="settings", verdict=Verdict.OK, says="valid, and those that the services were started with"
        )
    return Finding(
        check="settings", verdict=Verdict.WARN,
        says=f"not those that the services were started with: {'; '.join(changed)}",
        do="elastic up --restart, or unset them",
    )  # fmt: skip


def home_folder(settings: Settings) -> Finding:
    home = settings.home
    there = home if home.exists() else next(folder for folder in home.parents if folder.exists())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(
            check="home", verdict=Verdict.FAIL, says=f"{there} cannot be written", do="own it, or set ELASTIC_HOME"
        )
    if free < LEAST_FREE:
        return Finding(
            check="home", verdict=Verdict.WARN, says=f"{home}: {size_text(free)} are free on its disk",
            do="make room, or set ELASTIC_HOME and ELASTIC_STORE to a larger disk",
        )  # fmt: skip
    state = "" if home.exists() else ", not made yet (`elastic up` does)"
    return Finding(check="home", verdict=Verdict.OK, says=f"{home}{state}, {size_text(free)} free")


def shared_memory() -> Finding:
    if not SHARED.is_dir():
        return Finding(
            check="shared memory", verdict=Verdict.WARN, says=f"{SHARED} is not there", do="mount a tmpfs there"
        )
    free = shutil.disk_usage(SHARED).free
    small = free < LEAST_SHARED
    return Finding(
        check="shared memory", verdict=Verdict.WARN if small else Verdict.OK, says=f"{SHARED}: {size_text(free)} free",
        do="give it more (of a container: --shm-size); ranks read for themselves without" if small else "",
    )  # fmt: skip


def cluster(settings: Settings) -> Finding:
    from elastic_core.host.this_machine import discover, require_networks

    try:
        spec = discover(settings)
        require_networks(spec)
    except ElasticError as error:
        return Finding(
            check="cluster", verdict=Verdict.FAIL, says=str(error), do="mend the file that ELASTIC_CLUSTER names"
        )
    counts = _counts(spec.nodes)
    accelerated = any(kind != "cpu" for kind in spec.capacity())
    if accelerated and (problem := _cuda_problem()):
        return Finding(
            check="cluster", verdict=Verdict.FAIL, says=f"slots: {counts}; {problem}",
            do="install torch with CUDA (requirements-cuda.lock), and a driver that it can use",
        )  # fmt: skip
    return _heard_by_strangers(spec.nodes) or Finding(check="cluster", verdict=Verdict.OK, says=f"slots: {counts}")


def ray_cluster(settings: Settings) -> Finding:
    """The pool as the service `ray-pool` has it of Ray's head; this host has no slots then."""
    from elastic_core.launch.on_ray.pool.pool_reports import PoolReports

    try:
        pool = PoolReports(settings).known()
    except ElasticError as error:
        return Finding(
            check="cluster", verdict=Verdict.FAIL, says=str(error),
            do="start Ray's head again, or set ELASTIC_RAY_ADDRESS and ELASTIC_RAY_TOKEN_FILE: nothing is started or "
            "stopped meanwhile",
        )  # fmt: skip
    if pool is None:
        return Finding(
            check="cluster", verdict=Verdict.WARN, says="Ray answers, and nobody looks which nodes it has",
            do="elastic up: its service ray-pool does",
        )  # fmt: skip
    says = f"slots of Ray nodes: {_counts(pool.nodes) or 'none'}"
    if pool.left_out():
        why = "; ".join(f"{node}: {reason}" for node, reason in pool.left_out().items())
        return Finding(
            check="cluster", verdict=Verdict.WARN, says=f"{says}; without work yet are {why}",
            do="wait for those that come; mend labels and resources of a mislabelled one (docs/guide/machines.md)",
        )  # fmt: skip
    if not pool.nodes:
        return Finding(
            check="cluster", verdict=Verdict.FAIL, says=says,
            do="ray start on a machine, with --labels=elastic.node=NAME and --resources='{\"slot:TYPE\": COUNT}'",
        )  # fmt: skip
    return _heard_by_strangers(pool.nodes) or Finding(check="cluster", verdict=Verdict.OK, says=says)


def _counts(nodes: Sequence[NodeSpec]) -> str:
    counted = Counter[str]()
    for node in nodes:
        counted[node.type] += node.slots
    return ", ".join(f"{count} of {kind}" for kind, count in sorted(counted.items()))


def _heard_by_strangers(nodes: Sequence[NodeSpec]) -> Finding | None:
    exposed = _exposed(nodes)
    if not exposed:
        return None
    return Finding(
        check="cluster", verdict=Verdict.WARN,
        says=f"slots: {_counts(nodes)}; ranks on {exposed} exchange gradients over gloo, which encrypts nothing, at "
        "addresses that are not private",
        do="give nodes addresses of a private network, or of an encrypted overlay (WireGuard, IPsec): SECURITY.md",
    )  # fmt: skip


def _exposed(nodes: Sequence[NodeSpec]) -> str:
    """The nodes whose addresses strangers may reach, in words; "" for none."""
    from elastic_core.host.network.exposed import is_exposed

    return ", ".join(
        f"{node.name} ({node.address})" for node in nodes if node.address is not None and is_exposed(node.address)
    )


def _cuda_problem() -> str:
    """Why torch cannot use this machine's devices; "" if it can."""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return "" if torch.distributed.is_nccl_available() else f"torch {torch.__version__} has no NCCL"


def notifiers(settings: Settings) -> Finding:
    """Loaded as the services do, in a process of their own: it is the operator's code, and needs Airflow."""
    if not settings.notifiers:
        return Finding(check="notifiers", verdict=Verdict.OK, says="none: nobody is told how jobs end")
    with TemporaryDirectory() as home:  # Airflow writes its configuration where there is none
        environment = {**service_environment(settings, os.environ), "AIRFLOW_HOME": home}
        try:
            done = subprocess.run(
                [sys.executable, "-m", NOTIFIERS], env=environment, cwd=home, capture_output=True, text=True,
                timeout=LOAD_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            says = f"loading {settings.notifiers} took more than {LOAD_SECONDS:g} s"
            return Finding(check="notifiers", verdict=Verdict.FAIL, says=says, do="see what its modules do on import")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Finding(
            check="notifiers", verdict=Verdict.FAIL, says=last,
            do="mend ELASTIC_NOTIFIERS or what it names, then elastic up --restart: it is told nothing until then",
        )  # fmt: skip
    return Finding(check="notifiers", verdict=Verdict.OK, says=done.stdout.strip().splitlines()[-1])


def ports(settings: Settings, stack: Stack, running: bool) -> Finding:
    numbers = [port for program in stack.programs() for port in program.ports]
    shown = ", ".join(f"{port.number} ({port.setting})" for port in numbers)
    if running:
        return Finding(check="ports", verdict=Verdict.OK, says=f"in use by the services on {settings.host}: {shown}")
    for port in numbers:
        if not is_free(settings.host, port.number):
            return Finding(
                check="ports", verdict=Verdict.FAIL, says=f"port {port.number} is taken by {owner(port.number)}",
                do=f"stop that process, or set ELASTIC_{port.setting.upper()}",
            )  # fmt: skip
    return Finding(check="ports", verdict=Verdict.OK, says=f"free on {settings.host}: {shown}")


def service_health(states: list[services.ServiceStatus], running: bool) -> Iterator[Finding]:
    if not running:
        yield Finding(check="services", verdict=Verdict.WARN, says="nothing runs", do="elastic up")
        return
    ailing = [state for state in states if not state.healthy]
    for state in ailing:
        yield Finding(
            check=state.name, verdict=Verdict.FAIL, says=state.detail,
            do=f"elastic logs {state.name}; elastic up starts what does not run",
        )  # fmt: skip
    if not ailing:
        yield Finding(
            check="services", verdict=Verdict.OK, says=f"healthy: {', '.join(state.name for state in states)}"
        )


def store(settings: Settings, name: Callable[[], str] = lambda: f"doctor-{uuid.uuid4().hex}") -> Finding:
    """Writes, reads and deletes one small object."""
    from elastic_core.state.stores.store_urls import open_store

    url, key, content = settings.store_url(), f"{name()}/probe", b"elastic doctor"
    if "://" not in url and not Path(url).exists():
        return Finding(check="store", verdict=Verdict.OK, says=f"{url}, not made yet (the first job does)")
    try:
        place = open_store(url, endpoint=settings.s3_endpoint)
        place.put(key, content)
        try:
            got = place.get(key)
        finally:
            place.delete(key.rpartition("/")[0])
    except (ElasticError, OSError) as error:
        return Finding(
            check="store", verdict=Verdict.FAIL, says=f"{url}: {error}",
            do="see ELASTIC_STORE, ELASTIC_S3_ENDPOINT and the AWS_ variables; a folder must be writable",
        )  # fmt: skip
    if got != content:
        return Finding(
            check="store", verdict=Verdict.FAIL, says=f"{url} gives back other bytes", do="use another store"
        )
    return Finding(check="store", verdict=Verdict.OK, says=f"{url}: written, read and deleted a probe")
