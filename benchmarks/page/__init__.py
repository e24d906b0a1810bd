"""How soon the page can be used with hundreds of jobs, in a real browser."""
