"""The pure core: records and folds, reasons and decisions, checkpoint rules, accounting, ports.

Standard library only. Nothing here opens a file, a socket or a clock; effects come in through the
ports of `ports`, and time, identity and randomness as arguments.
"""
