"""What a process of this machine is, for whoever starts, forks, watches or ends one; nothing heavy."""
