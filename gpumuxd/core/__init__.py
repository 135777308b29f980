"""The policy stack: pure, deterministic, no clock, no threads, no torch. See `device_scheduler`."""
