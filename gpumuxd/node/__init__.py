"""The parent's half: tenants' limits, the model registry, the supervisor of device children."""
