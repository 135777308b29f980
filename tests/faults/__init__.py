"""Real faults: a device child and a loader that break when they are asked to, and whoever asks.

Nothing of this is in the package: the daemon of these tests is `daemon.py`, which builds the real
one with children of its own.
"""
