"""What a browser shows of runs: the report, its pictures and the look of all pages."""
