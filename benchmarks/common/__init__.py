"""What several benchmarks share: the report with its bars, changes of layout between real processes, loss curves.
May import elastic_core and examples; no benchmark."""
