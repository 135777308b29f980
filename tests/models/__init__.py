"""Repository, manifest and artifact reader."""
