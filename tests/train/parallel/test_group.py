"""A process group's exchanges: every rank hears what every rank said, however long it is."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch

from elastic_core.host.rundir import RunDir
from elastic_core.train.parallel.group import Group
from tests.train import forked

WORLD = 3
LENGTHS = (0, 1, 7, 4087, 4088, 4089, 9_000, 100_000)  # around what one exchange carries


def message(seed: int, rank: int) -> bytes:
    rng = Random(f"{seed}/{rank}")
    return rng.randbytes(rng.choice(LENGTHS))


def talks(folder: str, rank: int, rounds: int) -> int:
    group = Group.form(RunDir(Path(folder)), rank, WORLD, torch.device("cpu"))
    for seed in range(rounds):
        said = [message(seed, other) for other in range(WORLD)]
        assert group.gather_bytes(said[rank]) == said
        assert group.from_first(said[rank]) == said[0]
        assert group.from_rank(seed % WORLD, said[rank]) == said[seed % WORLD]
    group.close()
    return 0


def test_every_rank_hears_every_message_whole(tmp_path: Path) -> None:
    ranks = [forked.start(talks, str(tmp_path), rank, 40, log=tmp_path / "log") for rank in range(WORLD)]
    assert forked.join(ranks) == [0] * WORLD, (tmp_path / "log").read_text()


def test_who_is_alone_hears_itself() -> None:
    assert Group().gather_bytes(b"alone") == [b"alone"]
    assert Group().from_first(b"") == b""
