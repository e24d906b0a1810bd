"""One seed: a pool, jobs, and all the parts around the control plane, until every job has ended and all parts agree.

Faults come in the first `FAULT_SECONDS`; then everything is mended, and nobody but the platform puts right what they
left. `run(seed, url)` is all there is to call.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sqlalchemy import text

from benchmarks.common.ledger_history import Violation
from benchmarks.simulated_faults.airflow_side import RECONCILE_SECONDS, SimulatedAirflow
from benchmarks.simulated_faults.disk import Disk, SimulatedStore
from benchmarks.simulated_faults.faults import Faults
from benchmarks.simulated_faults.faulty_policy import FaultyPolicy, fails, registered
from benchmarks.simulated_faults.host import Group, SimulatedLauncher
from benchmarks.simulated_faults.hub import Hub
from benchmarks.simulated_faults.network import Channel, Network, SimulatedService, SimulatedTrainerClient
from benchmarks.simulated_faults.promises import Promises
from benchmarks.simulated_faults.servers import ApiServer, ControlProcess, Database, home_of
from benchmarks.simulated_faults.tracking import SimulatedMlflow, TrackerProcess
from benchmarks.simulated_faults.trainers import Trainer
from benchmarks.simulated_faults.users import Users
from elastic_core import crashing
from elastic_core.control.transitions.ledger_reconcile import START_SECONDS
from elastic_core.domain import Snapshot
from elastic_core.policy.rules.paused_jobs import without_paused
from elastic_core.protocol import calls
from elastic_core.settings import Settings
from elastic_core.spec import ClusterSpec

STARTS_AT = 1_700_000_000.0  # Unix seconds
FAULT_SECONDS, QUIET_SECONDS = 100.0, 10.0
LEASE_SECONDS, GRACE_SECONDS = 40.0, 15.0
# From the end of the faults: leases run out, orders that may be under way arrive, and two reconciliations put right
# what is left; each call may be made anew once.
AGREE_SECONDS = LEASE_SECONDS + GRACE_SECONDS + START_SECONDS + 2 * RECONCILE_SECONDS + 30.0
LASTING_SECONDS = 2 * RECONCILE_SECONDS  # that parts may disagree about what has just changed
END_SECONDS = 3600.0
POLICIES = ("fair_share", "fair_share", "fair_share", "horizon", "elastic_batch", FaultyPolicy.name)

CLEAR = text("""
    TRUNCATE jobs, segments, nodes, slots, leases, lease_slots, heartbeats, targets, observations, checkpoints,
             decisions, events, readers, scheduling, queues, forecasts, imported_runs RESTART IDENTITY CASCADE;
    ALTER SEQUENCE lease_epoch RESTART; ALTER SEQUENCE event_position RESTART;
    INSERT INTO scheduling (id, version, decided_version, trigger, policy, policy_state) VALUES (1, 0, 0, '', '', '{}');
""")


# Everything that was told and decided, and how it ended; but for how long a decision took on this machine.
HISTORY = text("""
    SELECT md5(concat_ws('; ',
        (SELECT string_agg(e::text, '; ' ORDER BY id) FROM events e),
        (SELECT string_agg(CAST(to_jsonb(d) - 'seconds' AS text), '; ' ORDER BY id) FROM decisions d),
        (SELECT string_agg(c::text, '; ' ORDER BY id) FROM checkpoints c),
        (SELECT string_agg(l::text, '; ' ORDER BY epoch) FROM leases l),
        (SELECT string_agg(s::text, '; ' ORDER BY id) FROM segments s),
        (SELECT string_agg(j::text, '; ' ORDER BY id) FROM jobs j)))
""")


@dataclass
class Outcome:
    seed: int
    policy: str
    jobs: int = 0
    events: int = 0  # of the simulation
    changes: int = 0  # transactions that wrote
    checks: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)  # crash points at which a process ended
    passed: Counter[str] = field(default_factory=Counter)  # crash points that were come to
    upkeep: int = 0  # so often the ledger was kept up
    wishes: Counter[str] = field(default_factory=Counter)  # what users and the operator asked for, beside submissions
    finished: int = 0
    groups: int = 0
    decisions: int = 0
    agreed_after: float | None = None  # seconds from the end of the faults
    ended_at: float = 0.0  # simulated seconds
    history: str = ""  # a digest of what the ledger holds at the end
    log: list[tuple[float, str]] = field(default_factory=list)  # faults and what users did
    violations: list[str] = field(default_factory=list)


class World:
    def __init__(self, seed: int, url: str) -> None:
        self.seed, self.url = seed, url
        rng = self.rng("world")
        self.hub = Hub()
        self.offsets = {"api-0": 0.0, "api-1": 0.0, "host": 0.0}
        self.network = Network(self.hub, self.rng("network"))
        self.database = Database(self.hub, self.network, url, self.rng("database"))
        with self.database.admin.connect() as admin:
            admin.execute(CLEAR)
        self.policy = rng.choice(POLICIES)
        self.settings = Settings(
            home=home_of(url), policy=self.policy, lease_seconds=LEASE_SECONDS, grace_seconds=GRACE_SECONDS,
            max_attempts=1000, use_predictors=False,
        )  # fmt: skip
        self.disk = Disk()
        self.launcher = SimulatedLauncher(self.hub, self.clock("host"), self._train, self._agent)
        store = SimulatedStore(self.disk, self.hub, self.network, "airflow", self.clock("host"), self.rng("sweep"))
        self.servers: list[ApiServer] = []
        self.airflow = SimulatedAirflow(
            self.hub, self.network, self.service("airflow"), self.launcher, store, self.clock("host")
        )
        for part in ("api-0", "api-1"):
            self.servers.append(ApiServer(part, self.hub, self.database, self.settings, self.clock(part), self.airflow))
        self.operator = ControlProcess("host", self.hub, self.database, self.settings, self.clock("host"), None)
        self.judge = self.operator.control
        self.mlflow = SimulatedMlflow(self.hub, self.network, self.rng("mlflow"))
        self.tracker = TrackerProcess(self.hub, self.database, self.settings, self.clock("host"), self.mlflow)
        self.nodes = {f"node-{letter}": 2 for letter in "abc"[: rng.randint(2, 3)]}
        self.operator.control.set_cluster(self.cluster(self.nodes))
        self.users = Users(self, self.rng("users"))
        self.faults = Faults(self, self.rng("faults"))
        self.promises = Promises(self)
        self.passed: Counter[str] = Counter()
        self._seen_since: dict[str, float] = {}  # of parts that do not agree

    def rng(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def clock(self, machine: str) -> Callable[[], float]:
        """Its wall clock, Unix seconds."""
        return lambda: STARTS_AT + self.hub.now + self.offsets[machine]

    def cluster(self, nodes: dict[str, int]) -> ClusterSpec:
        return ClusterSpec.model_validate(
            {"nodes": [{"name": name, "type": "cpu", "slots": slots} for name, slots in sorted(nodes.items())]}
        )

    def service(self, part: str) -> SimulatedService:
        return SimulatedService(self._channel(part, calls.service_methods(), None, 30.0))

    def _channel(self, part: str, methods: object, token: Callable[[], str] | None, patience: float) -> Channel:
        rng = self.rng(f"channel/{part}/{self.hub.events}")
        return Channel(self.hub, self.network, self.servers, part, methods, token, patience, rng, self.clock("host"))  # type: ignore[arg-type]

    def _connect(self, part: str) -> Callable[[str], SimulatedTrainerClient]:
        def channel(token: Callable[[], str]) -> Channel:
            return self._channel(part, calls.trainer_methods(), token, 30.0)

        return lambda token: SimulatedTrainerClient(token, channel)

    def connect_trainer(self, token: str) -> SimulatedTrainerClient:
        return self._connect("trainers")(token)

    def _agent(self, token: str) -> SimulatedTrainerClient:
        return self._connect("agents")(token)

    def _train(self, group: Group) -> None:
        rng = self.rng(f"trainer/{group.origin}")
        store = SimulatedStore(self.disk, self.hub, self.network, "trainers", self.clock("host"), rng)
        Trainer(self.hub, self.launcher, group, store, self._connect("trainers"), self.clock("host"), rng).run()

    def policy_fails(self, wanted: str, snapshot: Snapshot) -> bool:
        """Shown what it is shown: nobody who is paused."""
        return wanted == FaultyPolicy.name and fails(without_paused(snapshot)[0])

    def _pass(self, point: str) -> None:
        if self.hub.current is None:
            return
        self.passed[point] += 1
        self.faults.at_point(point)
        if point == "transaction.unheard":
            self.database.after_commit()

    def mend(self) -> None:
        """Faults are over, clocks are right again, and a user takes back the nodes that were set aside for them."""
        self.network.mend()
        self.database.mend()
        self.disk.mend()
        self.mlflow.away_until = 0.0
        self.launcher.lost_nodes.clear()
        for machine in self.offsets:
            self.offsets[machine] = 0.0
        self.faults.over = True
        self.hub.spawn(self.operator.process, self._repaired)
        self.users.wishes.end()

    def _repaired(self) -> None:
        self.operator.control.set_cluster(self.cluster(self.nodes))
        for node in self.nodes:
            self.operator.control.take_back_node(node)

    def run(self) -> Outcome:
        crashing.watch(self._pass)
        outcome = Outcome(self.seed, self.policy)
        try:
            self._live(outcome)
        finally:
            crashing.watch(None)
            self._close()
        outcome.faults, outcome.points, outcome.passed = self.faults.made, self.faults.points, self.passed
        outcome.events, outcome.changes, outcome.checks = self.hub.events, self.database.writes, self.promises.checks
        outcome.jobs, outcome.groups = len(self.promises.picture.jobs), self.launcher.started
        outcome.decisions, outcome.ended_at = self.promises.picture.last_decision, self.hub.now
        outcome.upkeep = sum(server.upkeep.times for server in self.servers)
        outcome.log, outcome.wishes = self.faults.log, self.users.wishes.made
        with self.database.admin.connect() as admin:
            outcome.history = admin.execute(HISTORY).scalar_one()
        return outcome

    def _live(self, outcome: Outcome) -> None:
        self.hub.at(FAULT_SECONDS, self.mend)
        next_look, seen = FAULT_SECONDS + QUIET_SECONDS, (-1, -1)
        while self.hub.next_at() < FAULT_SECONDS + END_SECONDS:
            self.hub.step()
            state = (self.database.writes, sum(len(group.occupied) for group in self.launcher.known.values()))
            if state != seen:
                seen = state
                if wrong := self.promises.after_an_event():
                    return self._say(outcome, wrong)
            if self.hub.now >= next_look and self.faults.over:
                next_look = self.hub.now + QUIET_SECONDS
                wrong = self.promises.disagreements()
                if not wrong and outcome.agreed_after is None:
                    outcome.agreed_after = self.hub.now - FAULT_SECONDS
                lasting = self._lasting(wrong)
                if lasting and self.hub.now > FAULT_SECONDS + AGREE_SECONDS:
                    return self._say(outcome, lasting)
                if not wrong and self._all_ended(outcome):
                    return None
        wrong = self.promises.disagreements()
        active = [job["id"] for job in self._whole_jobs() if job["state"] == "active"]
        return self._say(outcome, [*wrong, *(Violation(7, f"{job} has not ended in an hour") for job in active)])

    def _lasting(self, wrong: list[Violation]) -> list[Violation]:
        """Those that were seen for so long that nobody is about to put them right; what is under way is no fault."""
        self._seen_since = {str(what): self._seen_since.get(str(what), self.hub.now) for what in wrong}
        return [what for what in wrong if self.hub.now - self._seen_since[str(what)] >= LASTING_SECONDS]

    def _all_ended(self, outcome: Outcome) -> bool:
        jobs = self._whole_jobs()
        if self.users.still_to_come or self.users.may_come or any(job["state"] == "active" for job in jobs):
            return False
        failed = [job["id"] for job in jobs if job["state"] == "failed"]
        self._say(outcome, [Violation(9, f"{job} failed, and no user's code did") for job in failed])
        return True

    def _whole_jobs(self) -> list[Mapping[str, Any]]:
        """All but those of which nothing that they could go on from is as it was written: no promise says that
        they end. They try again until their attempts are used up, of which there are many here."""
        left: dict[str, set[str]] = {}
        for row in self.promises.picture.checkpoints.values():
            if not row["bad"] and row["swept"] is None:
                left.setdefault(row["job"], set()).add(row["uri"])
        damaged = {key.rpartition("/")[0] for key in self.disk.damaged}
        return [job for job in self.promises.picture.jobs.values()
                if not (job["id"] in left and left[job["id"]] <= damaged)]  # fmt: skip

    def _say(self, outcome: Outcome, wrong: list[Violation]) -> None:
        at = self.hub.now
        outcome.violations += [f"at {at:.2f} s, event {self.hub.events}: {violation}" for violation in wrong]

    def _close(self) -> None:
        self.hub.close()
        for process in (*self.servers, self.operator, self.tracker):
            process.close()


def run(seed: int, url: str) -> Outcome:
    """The same outcome for the same seed, whatever machine and load."""
    gc.disable()  # it takes a tenth of the time, again and again over all that is imported
    try:
        with registered():
            return World(seed, url).run()
    finally:
        gc.enable()
        gc.collect(0)  # what the seed left
