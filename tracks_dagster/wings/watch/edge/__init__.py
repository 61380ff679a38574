"""Commands and sensors of this wing."""
