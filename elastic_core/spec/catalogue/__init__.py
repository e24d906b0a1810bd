"""What a job may name on this installation, read from the project's source: tasks, and their parameters as fields of
the form. Nothing of a user's is imported here; it may import what is said of wrong keys, and text."""
