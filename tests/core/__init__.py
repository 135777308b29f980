"""The policy stack: plain objects, no fixtures, no clock."""
