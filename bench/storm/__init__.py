"""A storm of requests with hopeless deadlines, cancels, dropped channels and killed clients.

`python -m bench.storm` has the daemon and a bare gRPC server weather the same storm, and says what
either has left of it: requests in flight, memory.
"""
