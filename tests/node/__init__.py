"""The parent's node with fakes below it."""
