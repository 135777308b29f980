"""What a model is, read without torch: specs, manifests, the repository, the artifact reader."""
