"""Use cases over the ports: declare, launch, supervise, close, decide, evaluate, promote, explain."""
