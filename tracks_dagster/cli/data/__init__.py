"""Commands about checkpoints and data: list, verify, collect, freeze, hold back."""
