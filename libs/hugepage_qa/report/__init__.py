"""What the suite tells people and other programs: terminal, tmt results, summaries."""
