"""What a comparison of policies says: figures, fairness, and one HTML page (matplotlib, Jinja2).
May import the engine's results, ground_truth and workloads; it runs nothing and reads no clock."""
