"""Reads project files and configs, and keeps which projects a home has."""
