"""Which slots deploy/slurm takes for the pool, by what Slurm tells a step of its allocation."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.platform import ROOT

SCRIPT = ROOT / "deploy" / "slurm" / "ray-cluster.sbatch"
EIGHT = "#!/bin/sh\nfor i in 0 1 2 3 4 5 6 7; do echo NVIDIA H200; done\n"  # a machine that shows all its GPUs to all


def counted(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What the script's `count_slots` finds on such a machine."""
    (folder / "nvidia-smi").write_text(EIGHT)
    (folder / "nvidia-smi").chmod(0o755)
    text = SCRIPT.read_text().splitlines()
    functions = []
    for name in ("type_of_gpu", "count_slots"):
        first = text.index(f"{name}() {{")
        functions += text[first : text.index("}", first) + 1]
    shown = 'count_slots; echo "$TYPE $COUNT ${CUDA_VISIBLE_DEVICES:-}"'
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_CPUS_ON_NODE": "32", "SLOT_TYPE": "", "SLOTS": ""}
    return subprocess.run(
        ["bash", "-c", "\n".join(["set -euo pipefail", *functions, shown])], env={**given, **environ},
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "want"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,5", "SLURM_GPUS_ON_NODE": "2"}, "h200 2 2,5"),
        ({"SLURM_STEP_GPUS": "2,5", "SLURM_GPUS_ON_NODE": "2"}, "h200 2 2,5"),
        ({"CUDA_VISIBLE_DEVICES": "2,5", "SLOTS": "1", "SLOT_TYPE": "big"}, "big 1 2,5"),
        ({}, "cpu 32 "),  # of its GPUs none is ours
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "cpu 32 NoDevFiles"),
        ({"SLOTS": "4"}, "cpu 4 "),
        ({"SLOT_TYPE": "cpu", "CUDA_VISIBLE_DEVICES": "2,5", "SLURM_GPUS_ON_NODE": "2"}, "cpu 32 2,5"),
    ],
)
def test_slots_are_the_gpus_that_slurm_has_given_and_not_all_of_the_machine(
    tmp_path: Path, environ: dict[str, str], want: str
) -> None:
    done = counted(tmp_path, **environ)
    assert (done.stdout, done.stderr) == (f"{want}\n", "")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SLURM_GPUS_ON_NODE": "2"}, "Slurm has given 2 GPUs on this node and does not say which"),
        (
            {"CUDA_VISIBLE_DEVICES": "2,5", "SLOTS": "8"},
            "ELASTIC_SLOTS is 8, and Slurm has given 2 GPUs on this node (2,5)",
        ),
    ],
)
def test_more_slots_than_gpus_that_are_known_are_refused(tmp_path: Path, environ: dict[str, str], said: str) -> None:
    done = counted(tmp_path, **environ)
    assert done.returncode == 1
    assert said in done.stderr
