"""The front door over real sockets, with a fake node."""
