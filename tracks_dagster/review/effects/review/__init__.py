"""What ended on a day, what it cost, and what needs a person."""
