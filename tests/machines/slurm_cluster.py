"""A real Slurm on this machine: one controller, and nodes that are slurmd processes of their own; needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.e2e.platform import PATIENCE, free_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue")
START_SECONDS = 60.0


def skip_without_slurm() -> None:
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed here; Debian's slurmctld, slurmd and slurm-client have them")
    if os.getuid() != 0:
        pytest.skip("slurmd runs as root")


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


class SlurmCluster:
    """Nodes n1, n2, ... of two cores each, which all are this machine. Ended by `close`."""

    def __init__(self, nodes: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.names = [f"n{number + 1}" for number in range(nodes)]
        controller, *ports = free_ports(nodes + 1)
        lines = [
            "ClusterName=tests", f"SlurmctldHost={os.uname().nodename}(127.0.0.1)", f"SlurmctldPort={controller}",
            "AuthType=auth/none", "CredType=cred/none", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "MpiDefault=none", "ReturnToService=2", "SlurmUser=root", "SlurmdUser=root", "SwitchType=switch/none",
            "SchedulerType=sched/backfill", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core",
            "AccountingStorageType=accounting_storage/none", "JobAcctGatherType=jobacct_gather/none", "KillWait=10",
            f"StateSaveLocation={self.folder}/state", f"SlurmctldLogFile={self.folder}/slurmctld.log",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid", f"SlurmdLogFile={self.folder}/%n.log",
            f"SlurmdPidFile={self.folder}/%n.pid", f"SlurmdSpoolDir={self.folder}/spool-%n",
            *(f"NodeName={name} NodeHostname={os.uname().nodename} NodeAddr=127.0.0.1 Port={port} CPUs=2"
              for name, port in zip(self.names, ports, strict=True)),
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE",
        ]  # fmt: skip
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text("\n".join([*lines, ""]))
        (self.folder / "state").mkdir()
        self._processes = [self._start("slurmctld", "-D", "-f", str(self.conf))]
        self._processes += [self._start("slurmd", "-D", "-f", str(self.conf), "-N", name) for name in self.names]
        until = time.monotonic() + START_SECONDS * PATIENCE
        while self._idle() < nodes:
            if time.monotonic() > until:
                said = "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))
                self.close()
                raise AssertionError(f"Slurm did not come up:\n{said}")
            time.sleep(0.5)

    def run(self, *command: str, **environ: str) -> str:
        """A command of Slurm; what it says."""
        done = subprocess.run(
            command, env={**os.environ, **environ, "SLURM_CONF": str(self.conf)}, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _idle(self) -> int:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"], env={**os.environ, "SLURM_CONF": str(self.conf)},
            capture_output=True, text=True,
        )  # fmt: skip
        return len(set(done.stdout.split()))

    def _start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        program = _program(name)
        assert program is not None
        with (self.folder / f"{name}.out.log").open("ab") as output:
            return subprocess.Popen(
                [program, *options], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, "SLURM_CONF": str(self.conf)},
            )  # fmt: skip
