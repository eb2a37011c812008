"""Object stores: one contract, several implementations, decorators."""
