"""What a pool's watch has said, by what others can write into its output as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from elastic_core.errors import InfrastructureError
from elastic_core.launch.on_ray.jobs_api import JobsApi
from elastic_core.launch.on_ray.pool.pool_reports import PoolReports, RayPool
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from tests.control.serving import served

NODE = {"name": "n0", "type": "cpu", "slots": 2}
POOL = {"nodes": [NODE], "draining": ["n0"], "unclean": {}, "mislabelled": {}, "deadlines": {"n0": 12.5}}


def newest(home: Path, *values: Any) -> RayPool | None:
    """Of a watch that has printed these, from a server that answers as Ray's."""
    printed = "".join(f"elastic-journal {json.dumps({'kind': 'pool', 'value': value})}\n" for value in values)
    token, ray = home / "token", FastAPI()
    token.write_text("t" * 64)
    token.chmod(0o600)
    ray.get("/api/jobs/{name}")(lambda name: {"submission_id": name, "status": "RUNNING"})
    ray.get("/api/jobs/{name}/logs")(lambda name: {"logs": printed})
    with served(ray) as address:
        settings = Settings(home=home, ray_address=address, ray_token_file=token)
        return PoolReports(settings, JobsApi(settings)).newest()


def test_what_it_said_last_is_the_pool(tmp_path: Path) -> None:
    pool = RayPool((NodeSpec(name="n0", type="cpu", slots=2),), ("n0",), {}, deadlines={"n0": 12.5})
    assert newest(tmp_path, {"nodes": [], "draining": [], "unclean": {}}, POOL) == pool
    assert newest(tmp_path, POOL, {"nodes": [], "draining": [], "unclean": {}}) == RayPool((), (), {})


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ([], "RayPool"),
        ({**POOL, "nodes": [{**NODE, "slots": 0}]}, "nodes.0.slots"),
        ({**POOL, "draining": None}, "draining"),
        ({**POOL, "unclean": {"n0": 7}}, "unclean.n0"),
        ({**POOL, "deadlines": {"n0": "soon"}}, "deadlines.n0"),
    ],
)
def test_what_is_no_pool_is_told_in_words(tmp_path: Path, odd: object, says: str) -> None:
    with pytest.raises(InfrastructureError, match=rf"said last is no pool \(.*{says}.*somebody wrote into its output"):
        newest(tmp_path, POOL, odd)
