"""What is checked of tracks, objects, journals and the ledger; each finding says what to do."""
