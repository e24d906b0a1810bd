"""What workers print: read in parts, by job and attempt, and once each by who shows it elsewhere."""
