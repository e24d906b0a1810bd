"""The nodes' memory under resizes and without its cache servers; the nodes are this machine's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from elastic_core.domain import JobState
from tests.launch.conftest import executing_home as launch_home
from tests.launch.test_node_memory import cache_server_of, nodes, pool, restored

home = launch_home


def test_a_resize_in_place_reads_from_memory_alone(home: Path, ledger_url: str) -> None:
    with nodes(home, ledger_url, n0=1) as running:
        running.submit("long", slots=(1, 2), samples=4800, params={"sleep": 0.04})
        running.until_step("long", 10)
        pool(running, n0=1, n1=1)
        running.until(lambda: running.running("long").allocation.num_slots, lambda count: count == 2)
        assert running.wait("long").state is JobState.FINISHED
        segments = running.control.segments("long")
        assert [segment.handed_over for segment in segments] == [False, True]
        (sources,) = restored(running, "long")
        assert sources["other_hosts"] == sources["own_memory"] > 0  # n1's replica is n0's, which kept its own
        # The manifest, of which n1 had nothing, came from the old process, too.
        assert (sources["same_host"], sources["other_nodes"], sources["store"]) == (0, 0, 0)
        assert "names no address for node n1" in running.logs()


def test_without_its_cache_servers_a_job_restores_from_the_store_and_says_so(home: Path, ledger_url: str) -> None:
    with nodes(home, ledger_url, n0=1) as running:
        running.submit("job", samples=480, params={"sleep": 0.1}, checkpoints={"interval_steps": 10})
        running.until(lambda: running.control.checkpoints("job"), bool)
        cache_server_of(running, "n0").send(signal.SIGKILL)
        os.kill(running.worker_pids("job")[0], signal.SIGKILL)
        assert running.wait("job").state is JobState.FINISHED
        assert sorted(running.curve("job")) == list(range(1, 61))
        (sources,) = restored(running, "job")
        assert sources["store"] > 0
        assert (sources["own_node"], sources["other_nodes"]) == (0, 0)
        assert cache_server_of(running, "n0").alive()  # the next start of the job has brought another
