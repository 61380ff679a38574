"""The rules of the classifier, by the kind of evidence that they read."""
