"""The states that tracks fold into, and the rules that such a state obeys."""
