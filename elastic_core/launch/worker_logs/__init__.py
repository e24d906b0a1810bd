"""What workers print, as files of a group's run dir.

`parts` reads them and holds them to a size; `followed` gives each line of rank 0 once, to who shows it elsewhere.
"""
