"""A process for policies as `control.scheduling.policy_process` starts it, with policies that misbehave; with the word
`what-if` one that simulates, as `control.rpc.whatif` starts it."""

from __future__ import annotations

import os
import sys
import time
from random import Random
from typing import ClassVar

from elastic_core.control.scheduling import policy_process
from elastic_core.domain import Plan, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law
from elastic_core.policy.baselines.fair_share import FairShare


class Odd:
    """Fair, and drawing from the seed; what it does first depends on the name of the first job."""

    name: ClassVar[str] = "odd"
    laws: ClassVar[frozenset[Law]] = frozenset()

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        mood = os.environ.get("ODD") or next((job.name for job in snapshot.jobs), "")
        if mood == "hangs":
            time.sleep(600)
        if mood == "dies":
            os._exit(7)
        if mood == "eats":
            hoard = [bytearray(2**26) for _ in range(10_000)]
            raise AssertionError(f"{len(hoard)} pieces of 64 MiB, and nobody minds")
        if mood == "raises":
            raise ZeroDivisionError("no speed, no share")
        if mood == "prints":
            os.write(1, b"HiGHS says hello\n")
        return Plan(
            policy="odd", targets=FairShare().decide(snapshot, rng).targets, state={"drawn": rng.random()},
        )  # fmt: skip


if __name__ == "__main__":
    registry._POLICIES["odd"] = Odd
    if "what-if" in sys.argv:
        from elastic_core.control.rpc import what_if_process

        what_if_process.main()
    policy_process.main()
