"""What upstream needs of each kernel bug that the suite found: a report, and what shows the bug by itself."""
