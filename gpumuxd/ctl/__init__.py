"""The `gpumuxctl` command: what operators type. It talks to a daemon through the client."""
