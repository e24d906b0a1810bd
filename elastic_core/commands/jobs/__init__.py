"""`elastic jobs`: what is asked and told of jobs, what they print, and what one would take before it is submitted.

`jobs_commands` is the group of commands; the others are commands of it that need a page of their own.
"""
