"""What else holds of every group of processes, with workers of another Unix user: in `make nightly`."""

from __future__ import annotations

import pytest

from tests.launch.test_local import (  # noqa: F401
    test_a_forgotten_group_keeps_its_logs_and_never_starts_again,
    test_a_stop_is_firm_after_the_grace,
    test_when_one_worker_dies_the_others_are_ended_soon,
    test_workers_end_when_the_run_dir_vanishes,
)
from tests.launch.test_membership import (  # noqa: F401
    test_a_worker_that_dies_while_it_waits_costs_the_group_nothing,
    test_a_worker_that_leaves_ends_nobody_else_and_its_helpers_end_with_it,
    test_a_worker_that_the_order_names_belongs_to_the_group,
)
from tests.security.test_worker_user import home, make, user  # noqa: F401

pytestmark = pytest.mark.nightly
