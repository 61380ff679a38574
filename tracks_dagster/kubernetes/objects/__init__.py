"""The API's objects that a gang is made of. Pure."""
