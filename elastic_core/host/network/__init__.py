"""Where a node is on the network: its address, the interface that has it, and the namespace that stands for another
host; and sockets within this one. Standard library only: agents import this.
"""
