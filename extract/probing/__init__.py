"""Constructs a block and runs it, inside the sandbox: the search for arguments, and what is observed with them.

Everything here is imported by the sandbox's server before it forks: torch and the standard library only.
"""
