"""The device child, in a thread and as a real process."""
