"""After a reboot or an outage: what lives, what is lost, what starts first."""
