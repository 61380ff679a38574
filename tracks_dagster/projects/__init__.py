"""What a project is: its file, config and schedule, what its assets and models are checked for."""
