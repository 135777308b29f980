"""The `gpumuxd` command: configuration, life cycle, systemd, logging."""
