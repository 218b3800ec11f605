"""Owns: tests of by-hand mode.
Must not: leave a socket or thread behind.
Called by: pytest."""
