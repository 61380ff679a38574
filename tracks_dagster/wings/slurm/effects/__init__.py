"""Gangs on a Slurm cluster: its client's programs, what they say of all jobs, one gang as a job."""
