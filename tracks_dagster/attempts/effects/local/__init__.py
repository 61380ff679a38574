"""Gangs, evaluators and the code on this machine."""
