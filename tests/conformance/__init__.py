"""Clients that others wrote, unmodified, and what users of other servers ran into."""
