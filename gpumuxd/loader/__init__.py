"""The loader: a short-lived process that reads one artifact and hands over a plan and weights."""
