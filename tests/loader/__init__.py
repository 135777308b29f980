"""The loader as a real process."""
