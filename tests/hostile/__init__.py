"""Archives, plans and arguments that mean harm: each is refused, or runs within the limits."""
