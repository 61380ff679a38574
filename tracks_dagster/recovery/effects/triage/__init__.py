"""After a reboot or a lost daemon: what lives, what is lost, and in which order to restart."""
