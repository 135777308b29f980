"""Export, plans, interpreter, generated code, profiles."""
