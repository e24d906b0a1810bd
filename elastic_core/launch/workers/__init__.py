"""What the agent of a process group does while its workers live: starts and watches them (`worker_group`), ends what
they leave behind (`strays`), has a way to the control API made for them (`control_relay`), and tells the ledger which
slots they have left (`left_slots`). Standard library only: see `launch.agent`.
"""
