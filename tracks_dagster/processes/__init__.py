"""What a process of this machine is, for all that starts, forks, watches or ends one; nothing heavy."""
