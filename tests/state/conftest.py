"""Stores under test: a folder, `rclone serve s3` (a real server that checks signatures) and moto's server."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from elastic_core.state.store_access.access_broker import AccessBroker
from elastic_core.state.store_access.brokered_store import open_for_job
from elastic_core.state.store_access.store_grants import StoreAccess, StoreGrant
from elastic_core.state.stores.s3_signing import RequestSigner
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store

BUCKET = "checkpoints"
ACCESS_KEY = "elastic-access"
SECRET_KEY = "elastic-secret"


@dataclass
class Server:
    """An S3 server in a process of its own, with one empty bucket."""

    process: subprocess.Popen[bytes]
    endpoint: str
    folder: Path | None = None  # where a real server keeps its objects

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_up(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server did not come up within 60 s")


def start_rclone(folder: Path, port: int | None = None) -> Server:
    port = port or free_port()
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("rclone")), "serve", "s3", str(folder), "--config", os.devnull]
    command += ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--vfs-cache-mode", "off"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_until_up(process, port)
    return Server(process, f"http://127.0.0.1:{port}", folder)


def start_moto() -> Server:
    port = free_port()
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_until_up(process, port)
    endpoint = f"http://127.0.0.1:{port}"
    client = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    return Server(process, endpoint)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the servers under test, and none that this machine may have."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_rclone(tmp_path_factory.mktemp("rclone"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def moto() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        server = start_moto()
    yield server
    server.stop()


@contextmanager
def broker(server: Server, home: Path, url: str = f"s3://{BUCKET}") -> Iterator[Callable[[StoreGrant], StoreAccess]]:
    """A broker of this server; gives access by grants."""
    secret = secrets.token_bytes(32)
    with closing(AccessBroker(RequestSigner(url, server.endpoint), secret, home)):
        yield lambda grant: StoreAccess.of(secret, grant)


STORES = ["local", "rclone", "moto", "brokered rclone", "brokered moto"]


@pytest.fixture(params=STORES)
def make_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], CheckpointStore]]:
    """Opens stores on one fresh place, by prefix; brokered ones in an environment without credentials."""
    if request.param == "local":
        yield lambda prefix="": open_store(str(tmp_path / "store"), prefix=prefix)
        return
    brokered, _, name = request.param.rpartition(" ")
    server: Server = request.getfixturevalue(name)
    folder = secrets.token_hex(4)
    place = f"s3://{BUCKET}/{folder}"
    if not brokered:
        yield lambda prefix="": open_store(place, prefix=prefix, endpoint=server.endpoint)
        return
    with broker(server, tmp_path) as access_by:
        access = access_by(StoreGrant(who="the test", write=(folder,)))
        for variable in [variable for variable in os.environ if variable.startswith("AWS_")]:
            monkeypatch.delenv(variable)
        yield lambda prefix="": open_for_job(place, server.endpoint, access, prefix)


@pytest.fixture
def store(make_store: Callable[[str], CheckpointStore]) -> CheckpointStore:
    return make_store("")
