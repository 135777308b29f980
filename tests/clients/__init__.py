"""Our clients and stock tritonclient against a real daemon."""
