"""The benchmark's networks: no faster than they say, and gone when they are left, however they are left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.communication import __main__ as benchmark
from benchmarks.communication.__main__ import measure
from benchmarks.communication.delay_switch import Port
from benchmarks.communication.measured_rank import COMPUTE, DDP, Measured
from benchmarks.communication.namespaces import Namespaces, Network, missing

why = missing(delays=True)
needs_network = pytest.mark.skipif(why is not None, reason=f"no network namespaces here: {why}")

ANSWER = """
import socket
listening = socket.create_server(("10.77.0.1", 7000))
print("ready", flush=True)
connection, _ = listening.accept()
received = 0
while received < 1_000_000:
    received += len(connection.recv(1 << 20))
connection.sendall(b"done")
"""
ASK = """
import socket, time
started = time.monotonic()
with socket.create_connection(("10.77.0.1", 7000)) as connection:
    connection.sendall(bytes(1_000_000))
    assert connection.recv(4) == b"done"
print(time.monotonic() - started)
"""


def listed() -> set[str]:
    return set(subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.split())


def swap_seconds(network: Network) -> float:
    """For a connection, a million bytes there, and a word back."""
    with Namespaces(2, network) as namespaces:
        answering = namespaces.start(0, [sys.executable, "-c", ANSWER], stdout=subprocess.PIPE)
        assert answering.stdout.readline() == b"ready\n"
        asking = namespaces.start(1, [sys.executable, "-c", ASK], stdout=subprocess.PIPE)
        seconds, _ = asking.communicate(timeout=60)
        assert answering.wait(60) == asking.returncode == 0
    return float(seconds)


def test_a_kept_cell_of_other_code_is_measured_anew(tmp_path, monkeypatch):
    measured = []

    def measure_now(network, world, methods, seconds, steps):
        measured.append(network.name)
        return {
            method: Measured(
                method=method, step_seconds=float(len(measured)), sent_bytes=0.0, losses=[], chosen="", steps=1
            )
            for method in methods
        }

    monkeypatch.setattr(benchmark, "KEPT", tmp_path)
    monkeypatch.setattr(benchmark, "measure", measure_now)
    for code, seconds in (("this", 1.0), ("this", 1.0), ("other", 2.0)):
        monkeypatch.setattr(benchmark, "code_of", lambda modules, code=code: f"{code} {modules}")
        assert benchmark.kept((benchmark.SLOW, 2), again=False)[DDP].step_seconds == seconds
    assert benchmark.kept((benchmark.SLOW, 2), again=True)[DDP].step_seconds == 3.0


@needs_network
@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_a_network_is_no_faster_than_it_says(delay):
    """8 Mbit carry a million bytes in a second, less what token buckets hold; connecting is two ways, an answer too."""
    assert swap_seconds(Network("slow", 8e6, delay)) >= 0.85 + 4 * delay


@needs_network
@pytest.mark.parametrize("delay", [0.0, 0.001])
def test_a_network_is_gone_when_it_is_left_by_an_exception(delay):
    before = listed()

    def fail() -> None:
        with Namespaces(2, Network("any", 1e9, delay)):
            assert len(listed() - before) >= 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert listed() == before


@pytest.mark.nightly
@needs_network
def test_every_method_is_measured_and_its_bytes_counted_at_the_link():
    methods = (COMPUTE, DDP, "allreduce", "bytegrad")
    by_method = measure(Network("free", None), 2, methods, seconds=0.0, steps=3)
    assert tuple(by_method) == methods
    assert by_method[COMPUTE].sent_bytes < 10_000
    assert 0.98 < by_method[DDP].sent_bytes / by_method["allreduce"].sent_bytes < 1.02
    assert 3.8 < by_method["allreduce"].sent_bytes / by_method["bytegrad"].sent_bytes < 4.1
    assert by_method["allreduce"].losses == pytest.approx(by_method[DDP].losses, rel=1e-4)
    assert by_method["bytegrad"].losses == pytest.approx(by_method[DDP].losses, rel=0.02)


def test_a_port_of_the_switch_delivers_in_order_at_its_rate():
    port = Port(device=-1, bits_per_second=8000)
    for packet in (b"x" * 500, b"y" * 250):
        port.take(packet, at=10.0)
    assert port.next_at == pytest.approx(10.5)
    assert [at for at, _ in port._waiting] == pytest.approx([10.5, 10.75])
    port.deliver(now=10.4)
    assert len(port._waiting) == 2, "not before its time"


@needs_network
def test_a_network_with_a_delay_has_a_rate():
    far = Namespaces(2, Network("far", None, 1.0))
    with pytest.raises(ValueError, match="has a delay and no rate; give both"), far:
        pass


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "run it as root" in missing()
