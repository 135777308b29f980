"""Frames, channel and arena."""
