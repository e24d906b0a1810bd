"""What an index of the data order costs, for data sets of any size; and a shuffled list, which it replaces.

Bar: the median time of one index stays below 500 ns, however many samples there are.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

from benchmarks.common.report import Report
from elastic_core.state.order.sample_order import batch_indices

SIZES = {
    "digits": 1437,
    "2^20": 1 << 20,
    "2^20 + 1": (1 << 20) + 1,
    "ImageNet": 1_281_167,
    "10^9": 10**9,
    "10^12": 10**12,
}
BATCH = 4096


def nanoseconds(n: int, count: int) -> float:
    """Of one index, in one call for `count` of them from the middle of an epoch."""
    started = time.perf_counter()
    batch_indices(7, n, n // 2, count)
    return (time.perf_counter() - started) / count * 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    arguments = parser.parse_args()
    repeats = 15 if arguments.quick else 101
    report = Report("data_order", quick=arguments.quick)
    rows = []
    for name, n in SIZES.items():
        raw = [nanoseconds(n, BATCH) for _ in range(repeats)]
        report.figure(f"nanoseconds_per_index of {name}", raw)
        median = statistics.median(raw)
        rows.append((name, round(median, 1), round(median * BATCH / 1000)))
        report.bar(f"{name}: time of one index", want="< 500 ns", got=f"{median:.0f} ns", ok=median < 500)
    report.table(f"median of {repeats} batches of {BATCH}", ("samples", "ns an index", "us a batch"), rows)
    started = time.perf_counter()
    np.random.default_rng(0).permutation(1_281_167)
    report.figure("seconds_to_shuffle_a_list of ImageNet", time.perf_counter() - started)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
