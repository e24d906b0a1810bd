"""How long a process group on Ray takes, from the launcher's submission to its processes on two nodes."""
