"""What is asked of a ledger with many jobs is answered by its indexes."""

from __future__ import annotations

from sqlalchemy import create_engine, text

from elastic_core.control.ledger import reads
from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, a_spec

MANY = """
    INSERT INTO jobs (id, spec, facts, state, lineage, total_samples, submitted_at, notes, results)
    SELECT 'old-' || i, spec, facts, 'finished', 0, 1, i, '[]', jsonb_build_object(
        'registered_model', 'm' || i, 'registered_version', '1',
        'registered_versions', jsonb_build_object('m' || i || '/1', '{}'::jsonb))
    FROM jobs, generate_series(1, 2000) AS i WHERE id = 'job-a'
"""


def test_who_registered_a_version_is_found_without_reading_all_jobs(control: LedgerControl, ledger_url: str) -> None:
    control.submit("job-a", a_spec(), FACTS)
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(MANY))
        connection.execute(text("ANALYZE jobs"))
        query = reads.who_registered("m7", "1").compile(connection, compile_kwargs={"literal_binds": True})
        plan = "\n".join(line for (line,) in connection.exec_driver_sql(f"EXPLAIN {query}"))
    engine.dispose()
    assert "Seq Scan" not in plan, plan
