"""Whether data has drifted, told from samples."""

from __future__ import annotations

import numpy as np
import pytest
from pandas import DataFrame

from elastic_airflow.retraining.drift_tests import column_tests, drifted

ALPHA = 0.01


def table(seed: int, rows: int = 500, **changed: object) -> DataFrame:
    rng = np.random.default_rng(seed)
    columns = {
        "age": rng.normal(40, 10, rows),
        "clicks": rng.poisson(3, rows),
        "country": rng.choice(["de", "fr", "it"], rows, p=[0.5, 0.3, 0.2]),
        "paid": rng.random(rows) < 0.2,
        "income": np.where(rng.random(rows) < 0.1, np.nan, rng.lognormal(8, 1, rows)),
    }
    return DataFrame({**columns, **changed})


def test_samples_of_one_distribution_are_hardly_ever_taken_for_drifted() -> None:
    false_alarms = sum(bool(drifted(table(seed), table(1000 + seed), ALPHA)) for seed in range(60))
    assert false_alarms <= 3  # 0.6 are expected


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("age", np.random.default_rng(1).normal(46, 10, 500)),
        ("clicks", np.random.default_rng(2).poisson(4, 500)),
        ("country", np.random.default_rng(3).choice(["de", "fr", "it"], 500, p=[0.2, 0.3, 0.5])),
        ("country", np.random.default_rng(3).choice(["de", "fr", "new"], 500)),
        ("paid", np.random.default_rng(4).random(500) < 0.5),
        ("income", np.full(500, np.nan)),
    ],
)
def test_a_column_that_has_changed_is_named_first_and_alone(column: str, values: object) -> None:
    found = drifted(table(7), table(8, **{column: values}), ALPHA)
    assert [test.column for test in found] == [column]


def test_the_more_columns_are_looked_at_the_stronger_the_sign_has_to_be() -> None:
    then, now = table(7), table(8, age=table(7)["age"] + 2.2)
    alone = column_tests(then[["age"]], now[["age"]])[0].p_value
    among_many = {f"noise{i}": np.random.default_rng(i).normal(size=500) for i in range(30)}
    wide = column_tests(then[["age"]].assign(**among_many), now[["age"]].assign(**among_many))
    assert next(test.p_value for test in wide if test.column == "age") > alone


def test_other_columns_and_too_few_rows_cannot_be_told() -> None:
    with pytest.raises(ValueError, match=r"other columns: then \['age', .*now \['age', 'clicks', 'country', 'paid'\]"):
        column_tests(table(1), table(2).drop(columns="income"))
    with pytest.raises(ValueError, match="500 rows then and 19 now: a test needs 20"):
        column_tests(table(1), table(2, rows=19))
