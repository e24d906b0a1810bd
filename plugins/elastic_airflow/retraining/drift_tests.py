"""Has data drifted? Column by column, a sample of then against a sample of now, by SciPy's tests.

Numbers by the two-sample Kolmogorov-Smirnov test, anything else by the chi-squared test of its counts; the p-values of
all columns are adjusted for their number (Benjamini and Hochberg 1995), so that `alpha` bounds the share of columns
that are taken for drifted by chance among those that are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MOST_CATEGORIES = 50  # the rarest beyond are one
FEWEST_ROWS = 20


@dataclass(frozen=True, slots=True)
class ColumnTest:
    column: str
    test: str
    statistic: float
    p_value: float  # adjusted

    def __str__(self) -> str:
        return f"{self.column} ({self.test} {self.statistic:.3g}, p {self.p_value:.2g})"


def column_tests(then: DataFrame, now: DataFrame) -> list[ColumnTest]:
    """Of every column, the most telling first.

    Raises `ValueError` for samples of other columns, or of too few rows to tell.
    """
    from scipy.stats import false_discovery_control

    of_then, of_now = (sorted(map(str, table.columns)) for table in (then, now))
    if of_then != of_now:
        raise ValueError(f"the samples have other columns: then {of_then}, now {of_now}")
    if min(len(then), len(now)) < FEWEST_ROWS:
        raise ValueError(f"{len(then)} rows then and {len(now)} now: a test needs {FEWEST_ROWS} of each")
    found = [_test(str(column), then[column], now[column]) for column in then.columns]
    adjusted = false_discovery_control([test.p_value for test in found]) if found else []
    together = [
        ColumnTest(test.column, test.test, test.statistic, float(p)) for test, p in zip(found, adjusted, strict=True)
    ]
    return sorted(together, key=lambda test: (test.p_value, -test.statistic))


def drifted(then: DataFrame, now: DataFrame, alpha: float) -> list[ColumnTest]:
    """Those columns whose adjusted p-value is below `alpha`."""
    return [test for test in column_tests(then, now) if test.p_value < alpha]


def _test(column: str, then: Series, now: Series) -> ColumnTest:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype
    from scipy.stats import ks_2samp

    numbers = is_numeric_dtype(then) and is_numeric_dtype(now) and not is_bool_dtype(then)
    if numbers and then.notna().any() and now.notna().any() and not (then.isna().any() or now.isna().any()):
        found = ks_2samp(then.to_numpy(), now.to_numpy())
        return ColumnTest(column, "Kolmogorov-Smirnov", float(found.statistic), float(found.pvalue))
    return _by_counts(column, _classes(then, now), _classes(now, then))


def _classes(values: Series, other: Series) -> Series:
    """Categories as texts; numbers with gaps by the tenths of both together, the gaps a class of their own."""
    import pandas

    if pandas.api.types.is_numeric_dtype(values) and not pandas.api.types.is_bool_dtype(values):
        both = pandas.concat([values, other], ignore_index=True).astype(float)
        edges = sorted(set(both.quantile([i / 10 for i in range(11)]).dropna()))
        if len(edges) > 1:
            values = pandas.cut(values.astype(float), edges, include_lowest=True)
    return values.astype(object).where(values.notna(), "missing").astype(str)


def _by_counts(column: str, then: Series, now: Series) -> ColumnTest:
    import pandas
    from scipy.stats import chi2_contingency

    table = pandas.DataFrame({"then": then.value_counts(), "now": now.value_counts()}).fillna(0)
    table = table.loc[table.sum(axis=1).sort_values(ascending=False).index]
    if len(table) > MOST_CATEGORIES:
        rest = table.iloc[MOST_CATEGORIES:].sum()
        table = pandas.concat([table.iloc[:MOST_CATEGORIES], rest.to_frame("the rest").T])
    if len(table) < 2:
        return ColumnTest(column, "chi-squared", 0.0, 1.0)
    found = chi2_contingency(table.to_numpy())
    return ColumnTest(column, "chi-squared", float(found.statistic), float(found.pvalue))
