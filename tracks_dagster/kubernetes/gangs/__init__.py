"""What was seen of a gang on a cluster, folded and judged. Pure."""
