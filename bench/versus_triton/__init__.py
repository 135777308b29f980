"""gpumuxd beside stock Triton: the same models, the same client, the same machine."""
