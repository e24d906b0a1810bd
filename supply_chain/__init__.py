"""What this project is made of: the packages of its lock with their hashes, their licences, and a bill of materials.

Reads the two lock files and the metadata of what is installed; it imports nothing of the platform, and asks no network.
"""
