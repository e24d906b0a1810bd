"""What the page says of a job."""

from __future__ import annotations

from elastic_airflow.page.overview import restored_words


def test_where_a_jobs_state_came_from_is_said_by_source_and_with_its_time() -> None:
    timings = {
        "restored_from_own_memory_bytes": 12 * 2**20,
        "restored_from_same_host_bytes": 1536.0,
        "restored_from_store_bytes": 0.0,
        "restore_keep": 0.01,
        "restore_fetch": 0.3,
    }
    assert restored_words(timings) == "12.0 MiB kept in place, 1.5 KiB from processes of the same host, in 0.31 s"
    assert restored_words({}) == ""
