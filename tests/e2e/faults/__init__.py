"""Real processes killed, stopped and cut off on a real platform."""
