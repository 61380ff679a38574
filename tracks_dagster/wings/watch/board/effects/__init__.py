"""Reads what the pages show, renders them, serves them on this machine."""
