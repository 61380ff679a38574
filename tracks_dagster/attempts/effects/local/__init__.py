"""Gangs and the code on this machine."""
