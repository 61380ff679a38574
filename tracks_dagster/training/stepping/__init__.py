"""The training loop's own parts: sampling, steps, losses, triggers."""
