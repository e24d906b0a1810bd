"""What goes wrong in a seed: kinds, instants and victims are drawn from it. Crash points are taken in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from benchmarks.simulated_faults.host import Group
from benchmarks.simulated_faults.hostile import HostileTrainer
from benchmarks.simulated_faults.hub import Crashed
from benchmarks.simulated_faults.network import PARTS
from benchmarks.simulated_faults.servers import DATABASE_ERRORS
from elastic_core.crashing import CONTROL_POINTS
from elastic_core.errors import InfrastructureError

if TYPE_CHECKING:
    from benchmarks.simulated_faults.world import World

FEWEST, MOST = 6, 10  # of other kinds, beside two crash points
FIRST, LAST = 5.0, 95.0  # seconds
AGAIN = 3.0  # seconds
POINTS = tuple(CONTROL_POINTS)
JUMPS = (-3600.0, -40.0, -5.0, 5.0, 40.0, 3600.0)

SUBMISSIONS_POINT = "run.started"  # to which submissions alone come, most of them early
OPERATORS_POINT = "cluster.unfenced"  # in the command by which an operator changes the cluster


class Faults:
    def __init__(self, world: World, rng: Random) -> None:
        self._world, self._rng = world, rng
        self.made: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.log: list[tuple[float, str]] = []
        self.over = False
        self._armed: list[str] = []
        self.hostile: list[HostileTrainer] = []
        self._kinds: dict[str, Callable[[], str | None]] = {
            "worker killed": self._kill_workers,
            "agent killed": self._kill_agent,
            "worker stopped": self._stop_workers,
            "API server killed": self._kill_server,
            "API server stopped": self._stop_server,
            "Airflow killed": self._kill_airflow,
            "tracker killed": self._kill_tracker,
            "node lost": self._lose_node,
            "database error": self._database_errors,
            "database restarted": self._restart_database,
            "database slow": self._slow_database,
            "database away": self._database_away,
            "partition": self._partition,
            "bad network": self._bad_network,
            "clock jump": self._jump,
            "store full": self._fill_store,
            "store away": self._store_away,
            "object rotten": self._rot,
            "MLflow away": self._mlflow_away,
            "hostile trainer": self._be_hostile,
        }
        kinds = list(self._kinds)
        for index in range(rng.randint(FEWEST, MOST)):
            kind = kinds[(world.seed * 7 + index * 5) % len(kinds)] if index < 3 else rng.choice(kinds)
            world.hub.at(rng.uniform(FIRST, LAST), lambda kind=kind: self._make(kind))
        for offset in (0, len(POINTS) // 2):
            point = POINTS[(world.seed + offset) % len(POINTS)]
            armed_at = rng.uniform(0.0, 50.0) if point != SUBMISSIONS_POINT else 0.0
            world.hub.at(armed_at, lambda point=point: self._arm(point))
            if point == OPERATORS_POINT:  # which nothing else leads to
                world.hub.at(armed_at + 1.0, lambda: self._make("node lost"))

    def note(self, what: str) -> None:
        self.log.append((self._world.hub.now, what))

    def _make(self, kind: str) -> None:
        """Where there is nothing to do it to, later."""
        if self.over:
            return
        done = self._kinds[kind]()
        if done is None:
            self._world.hub.after(AGAIN, lambda: self._make(kind))
            return
        self.made[kind] += 1
        self.note(f"{kind}: {done}")

    def _arm(self, point: str) -> None:
        self._armed.append(point)

    def at_point(self, point: str) -> None:
        """A task has come to a crash point: its process ends there where that was drawn."""
        if self.over or point not in self._armed:
            return
        process = self._world.hub.current
        assert process is not None
        victim = next((p for p in self._crashable() if p.process is process), None)
        is_command = process is self._world.operator.process and point == OPERATORS_POINT
        if (victim is None and not is_command) or (point.startswith("transaction.") and self._rng.random() < 0.9):
            return
        self._armed.remove(point)
        self.points[point] += 1
        self.made["crash point"] += 1
        self.note(f"{process.name} ends at {point}")
        if victim is not None:
            victim.crashed(self._rng.uniform(2.0, 25.0))
        raise Crashed

    def _crashable(self) -> list:  # type: ignore[type-arg]
        return [*self._world.servers, self._world.airflow, self._world.tracker]

    # the kinds: each says what it did, or None where there was nothing to do it to

    def _group(self) -> Group | None:
        alive = [group for group in self._world.launcher.known.values() if group.alive]
        return self._rng.choice(alive) if alive else None

    def _kill_workers(self) -> str | None:
        if (group := self._group()) is None:
            return None
        self._world.launcher.kill(group)
        return f"of epoch {group.origin}"

    def _kill_agent(self) -> str | None:
        if (group := self._group()) is None:
            return None
        self._world.launcher.kill_agent(group)
        return f"of epoch {group.origin}"

    def _stop_workers(self) -> str | None:
        if (group := self._group()) is None:
            return None
        seconds = self._rng.choice([10.0, 50.0, 150.0])
        self._world.hub.freeze(group.workers, seconds)
        return f"of epoch {group.origin} for {seconds:.0f} s"

    def _be_hostile(self) -> str | None:
        if (group := self._group()) is None:
            return None
        self.hostile.append(hostile := HostileTrainer(self._world, group, Random(self._rng.random())))
        self._world.hub.spawn(group.workers, hostile.run)
        return f"of epoch {group.origin}"

    def _kill_server(self) -> str | None:
        server = self._rng.choice(self._world.servers)
        if not server.process.alive:
            return None
        server.crashed(self._rng.uniform(3.0, 45.0))
        return server.part

    def _stop_server(self) -> str | None:
        server = self._rng.choice(self._world.servers)
        seconds = self._rng.uniform(5.0, 70.0)
        self._world.hub.freeze(server.process, seconds)
        return f"{server.part} for {seconds:.0f} s"

    def _kill_airflow(self) -> str | None:
        if not self._world.airflow.process.alive:
            return None
        self._world.airflow.crashed(self._rng.uniform(3.0, 60.0))
        return "its tasks"

    def _kill_tracker(self) -> str | None:
        if not self._world.tracker.process.alive:
            return None
        self._world.tracker.crashed(self._rng.uniform(3.0, 60.0))
        return "the tracker"

    def _lose_node(self) -> str | None:
        """The machine is gone, then an operator takes it out of the cluster, and later it is back."""
        world, node = self._world, self._rng.choice(sorted(self._world.nodes))
        if world.launcher.lost_nodes:
            return None
        world.launcher.lost_nodes.add(node)
        for group in world.launcher.known.values():
            if any(slot.node == node for slot in group.occupied):
                world.launcher.kill(group, why=f"{node} is gone")
        left = {name: slots for name, slots in world.nodes.items() if name != node}

        def taken_out() -> None:
            if not self.over:
                world.operator.control.set_cluster(world.cluster(left))

        def back() -> None:
            if not self.over:
                world.launcher.lost_nodes.discard(node)
                world.operator.control.set_cluster(world.cluster(world.nodes))

        away = self._rng.uniform(2.0, 20.0)
        for work, after in ((taken_out, away), (back, away + self._rng.uniform(20.0, 80.0))):
            world.hub.spawn(world.operator.process, lambda work=work: self._operate(work), after)
        return node

    def _operate(self, work: Callable[[], None]) -> None:
        while not self.over:
            try:
                return work()
            except (InfrastructureError, Crashed):  # of the command, which they give once more
                self._world.hub.sleep(3.0)
        return None

    def _database_errors(self) -> str:
        kinds = [self._rng.choice(list(DATABASE_ERRORS)) for _ in range(self._rng.randint(1, 5))]
        self._world.database.next_errors += kinds
        return ", ".join(kinds)

    def _restart_database(self) -> str:
        self._world.database.restart_connections()
        return "all connections are dead"

    def _slow_database(self) -> str:
        seconds = self._rng.uniform(5.0, 40.0)
        self._world.database.slow_until = self._world.hub.now + seconds
        return f"for {seconds:.0f} s"

    def _database_away(self) -> str:
        seconds = self._rng.uniform(2.0, 40.0)
        self._world.database.away_until = self._world.hub.now + seconds
        return f"for {seconds:.0f} s"

    def _partition(self) -> str:
        one, other = self._rng.sample(PARTS, 2)
        seconds = self._rng.uniform(10.0, 100.0)
        self._world.network.cut(one, other, seconds)
        return f"{one} and {other} for {seconds:.0f} s"

    def _bad_network(self) -> str:
        seconds = self._rng.uniform(10.0, 60.0)
        self._world.network.be_bad(seconds)
        return f"for {seconds:.0f} s"

    def _jump(self) -> str:
        machine, seconds = self._rng.choice(sorted(self._world.offsets)), self._rng.choice(JUMPS)
        self._world.offsets[machine] += seconds
        if abs(seconds) > 1000.0:  # nobody is let in with such a clock, so it is set right before long
            self._world.hub.after(self._rng.uniform(10.0, 40.0), lambda: self._set_right(machine, seconds))
        return f"{seconds:+.0f} s on {machine}"

    def _set_right(self, machine: str, jumped: float) -> None:
        if not self.over:
            self._world.offsets[machine] -= jumped

    def _fill_store(self) -> str:
        seconds = self._rng.uniform(5.0, 50.0)
        self._world.disk.full_until = self._world.hub.now + seconds
        return f"for {seconds:.0f} s"

    def _store_away(self) -> str:
        seconds = self._rng.uniform(5.0, 50.0)
        self._world.disk.away_until = self._world.hub.now + seconds
        return f"for {seconds:.0f} s"

    def _rot(self) -> str | None:
        keys = sorted(self._world.disk.objects)
        if not keys:
            return None
        key = self._rng.choice(keys[-12:])
        self._world.disk.rot(key)
        return key

    def _mlflow_away(self) -> str:
        seconds = self._rng.uniform(10.0, 120.0)
        self._world.mlflow.away_until = self._world.hub.now + seconds
        return f"for {seconds:.0f} s"
