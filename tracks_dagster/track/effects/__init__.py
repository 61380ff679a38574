"""What reads the files that people write."""
