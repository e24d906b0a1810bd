"""An order on its way through Ray is closed to whoever has not the cluster's token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.launch.on_ray.sealed_order import MOST_BYTES, GroupLaunch, seal, token_of_node, unseal
from tests.launch.builders import order

LAUNCH = GroupLaunch(order=order(), settings={"tasks": "examples.*"}, worker_command=("python",), memory_secret="s")


def test_who_has_the_token_reads_it_and_nobody_else() -> None:
    sealed = seal(LAUNCH, "the token", "elastic-7")
    assert unseal(sealed, "the token", "elastic-7") == LAUNCH
    assert LAUNCH.order.token not in sealed
    for token, name in (("another token", "elastic-7"), ("the token", "elastic-8")):
        with pytest.raises(InfrastructureError, match="was not sealed with the token of this Ray cluster"):
            unseal(sealed, token, name)


def test_one_that_no_process_could_be_started_with_is_refused() -> None:
    noise = "".join(chr(33 + (number * 7919) % 90) + str(number) for number in range(MOST_BYTES))
    with pytest.raises(InfrastructureError, match=r"has \d+ bytes, compressed; Ray's driver takes 122880"):
        seal(replace(LAUNCH, order=replace(order(), grant_reason=noise)), "the token", "elastic-7")


def test_the_token_is_where_rays_own_processes_find_it(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of the home\n")
    (tmp_path / "token").write_text("of the path\n")
    home, path = {"HOME": str(tmp_path)}, {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    assert token_of_node({**home, **path, "RAY_AUTH_TOKEN": "of the variable"}) == "of the variable"
    assert token_of_node({**home, **path}) == "of the path"
    assert token_of_node(home) == "of the home"
    with pytest.raises(
        InfrastructureError, match=r"this Ray node has no token: /nowhere/\.ray/auth_token cannot be read"
    ):
        token_of_node({"HOME": "/nowhere"})
