"""Published workloads and measurements, read from the folder that `ELASTIC_DATA` names, each with its own physics.
May import ground_truth and predict; a malformed file is refused by file, line and column."""
