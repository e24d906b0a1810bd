"""The simulated network: messages between parts take their time, and are lost, doubled and overtaken while faults last.

What travels is what really travels: the bytes of `protocol.calls`. A call without an answer is made again, as
`protocol.http_client` makes it, and by the same contract classes; only their channel is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.simulated_faults.hub import TIMED_OUT, Hub, Reply
from elastic_core.errors import InfrastructureError
from elastic_core.protocol import calls
from elastic_core.protocol.http_client import HttpControl, HttpTrainer
from elastic_core.protocol.tokens import ServiceSigner

if TYPE_CHECKING:
    from benchmarks.simulated_faults.servers import ApiServer

TIMEOUT_SECONDS = 30.0  # as the real client's
SIGNER = ServiceSigner(b"control-secret-of-simulated-faults-0123")
PARTS = ("users", "airflow", "trainers", "agents", "api-0", "api-1", "ledger", "store", "mlflow", "tracker")


class Network:
    def __init__(self, hub: Hub, rng: Random) -> None:
        self._hub, self._rng = hub, rng
        self._cut: dict[tuple[str, str], float] = {}
        self._bad_until = 0.0
        self.told: dict[str, int] = {"lost": 0, "doubled": 0, "overtaken": 0}

    def cut(self, one: str, other: str, seconds: float) -> None:
        self._cut[_pair(one, other)] = self._hub.now + seconds

    def be_bad(self, seconds: float) -> None:
        """Messages are lost, doubled and overtaken."""
        self._bad_until = self._hub.now + seconds

    def mend(self) -> None:
        self._cut.clear()
        self._bad_until = 0.0

    def connected(self, one: str, other: str) -> bool:
        return self._cut.get(_pair(one, other), 0.0) <= self._hub.now

    def delays(self, sender: str, receiver: str) -> list[float]:
        """Seconds after which a message arrives, and arrives again; none where it is lost."""
        if not self.connected(sender, receiver):
            return []
        usual = 0.002 + self._rng.expovariate(1 / 0.02)
        if self._hub.now >= self._bad_until:
            return [usual]
        drawn = self._rng.random()
        if drawn < 0.1:
            self.told["lost"] += 1
            return []
        if drawn < 0.25:
            self.told["doubled"] += 1
            return [usual, usual + self._rng.uniform(0.1, 60.0)]
        if drawn < 0.4:
            self.told["overtaken"] += 1
            return [usual + self._rng.uniform(0.5, 15.0)]
        return [usual]


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


class Channel:
    """In the place of the real client's: sends calls of one half of the contract to either API server."""

    def __init__(
        self, hub: Hub, network: Network, servers: list[ApiServer], part: str, methods: Mapping[str, calls.Method],
        token: Callable[[], str] | None, patience_seconds: float, rng: Random, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._clock = clock
        self._hub, self._network, self._servers, self._part = hub, network, servers, part
        self._methods, self._token, self._patience, self._rng = methods, token, patience_seconds, rng

    def call(self, name: str, **arguments: Any) -> Any:
        method = self._methods[name]
        body = method.encode_arguments(arguments)
        until, wait = self._hub.now + self._patience, 0.2
        while True:
            try:
                return method.decode_result(self._send(name, body))
            except InfrastructureError:
                if self._hub.now >= until:
                    raise
            self._hub.sleep(wait * self._rng.uniform(0.5, 1.0))
            wait = min(wait * 2, 5.0)

    def _send(self, name: str, body: bytes) -> bytes:
        server = self._rng.choice(self._servers)
        reply = Reply(self._hub)

        def answer(status: int, content: bytes) -> None:
            for delay in self._network.delays(server.part, self._part)[:1]:
                self._hub.after(delay, lambda: reply.give((status, content)))

        if self._token is None:
            proof: str | Mapping[str, str] = SIGNER.headers("POST", f"/service/{name}", body, self._clock())
        else:
            proof = self._token()
        for delay in self._network.delays(self._part, server.part):
            self._hub.after(delay, lambda: server.receive(name, proof, body, answer))
        got = reply.wait(TIMEOUT_SECONDS)
        if got is TIMED_OUT:
            raise InfrastructureError(f"{server.part} gave no answer to {name!r}")
        status, content = got
        if status != 200:
            raise calls.decode_error(status, content)
        return bytes(content)

    def close(self) -> None:
        pass


class SimulatedService(HttpControl):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel  # type: ignore[assignment]


class SimulatedTrainerClient(HttpTrainer):
    def __init__(self, token: str, channel: Callable[[Callable[[], str]], Channel]) -> None:
        self.token = token
        self._channel = channel(lambda: self.token)  # type: ignore[assignment]
