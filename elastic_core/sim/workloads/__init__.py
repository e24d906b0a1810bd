"""What is simulated, by name: generated workloads, published ones (from traces), and clusters.
May import ground_truth and traces; everything drawn follows from a seed."""
