"""The policy stack: pure, deterministic, no clock, no threads, no torch. See `device_scheduler`."""

from gpumuxd.compiled import search_path

__path__ = search_path(__path__)
