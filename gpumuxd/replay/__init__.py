"""Recordings of a device scheduler, replayed: the same again, or under other settings."""
