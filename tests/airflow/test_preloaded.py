"""What a task's process finds loaded: everything of the platform's that its DAG file and its client import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# In a process of its own: this one has imported the platform long ago.
PARSED = """
import json, sys, threading
from pathlib import Path
import airflow.executors.local_executor, airflow.jobs.scheduler_job_runner, airflow.sdk.execution_time.supervisor
from elastic_airflow.preloaded import preload
preload()
loaded, threads = set(sys.modules), threading.active_count()
from airflow.dag_processing.dagbag import BundleDagBag
folder = Path(sys.argv[1])
bags = [BundleDagBag(dag_folder=str(file), safe_mode=False, load_op_links=False, bundle_path=folder, bundle_name="b")
        for file in sorted(folder.glob("elastic_*.py"))]
import elastic_core.launch.launchers
from elastic_core.protocol import calls, http_client
trusted, made = (part.cache_info().misses for part in (http_client._trust, calls._adapter))
http_client.HttpControl("http://127.0.0.1:9", b"0123456789abcdefghijklmnopqrstuv").close()
for method in calls.service_methods().values():
    for of in (*method.parameters.values(), method.result):
        calls._adapter(of)
print(json.dumps({"trusted": trusted, "made again": calls._adapter.cache_info().misses - made,
                  "dags": sorted(dag for bag in bags for dag in bag.dags), "threads": threads,
                  "heavy": sorted({"torch", "mlflow"} & loaded),
                  "new": sorted(name for name in set(sys.modules) - loaded
                                if name.startswith(("elastic_", "pydantic", "httpx")))}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    home = tmp_path_factory.mktemp("airflow")
    done = subprocess.run(
        [sys.executable, "-c", PARSED, str(ROOT / "dags")], capture_output=True, text=True, check=False,
        env={"AIRFLOW_HOME": str(home), "PATH": "/usr/bin:/bin", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_task_s_process_imports_nothing_of_the_platform_s_anew(parsed: dict[str, object]) -> None:
    assert parsed["dags"] == [
        "elastic_job",
        "elastic_predictors",
        "elastic_reconcile",
        "elastic_retrain",
        "elastic_segment",
    ]
    assert parsed["new"] == []


def test_a_scheduler_that_preloads_has_no_thread_and_neither_torch_nor_mlflow(parsed: dict[str, object]) -> None:
    assert (parsed["threads"], parsed["heavy"]) == (1, [])


def test_a_task_s_client_finds_made_what_it_reads_answers_with_and_trusts_servers_by(parsed: dict[str, object]) -> None:
    assert (parsed["trusted"], parsed["made again"]) == (1, 0)
