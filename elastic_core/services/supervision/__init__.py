"""Programs that are kept running: what one is, who starts it again, which processes are whose.

It knows no program by name; who they are is said above. It imports nothing but `host`, settings and errors.
"""
