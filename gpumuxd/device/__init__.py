"""The device child: owns one device's context, runs its scheduler and executor in one loop."""
