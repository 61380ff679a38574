"""An attempt's life, and the gang that runs it."""
