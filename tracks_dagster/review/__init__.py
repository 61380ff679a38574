"""What people read about runs: compared, complete, reviewed."""
