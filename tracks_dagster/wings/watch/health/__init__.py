"""What is going wrong with a run that trains: three lights, the rules of alerts, and advice."""
