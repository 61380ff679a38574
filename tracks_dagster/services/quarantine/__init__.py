"""Sources that nothing new may start from: deciding it, and asking whether something descends."""
