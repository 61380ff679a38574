"""A run as one HTML file without network: the explanations that `tracks explain` prints, drawn."""
