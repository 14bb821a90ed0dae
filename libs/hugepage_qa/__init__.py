"""Distribution QA of Linux huge pages: models, readers, throwaway machines, verdicts."""

__version__ = "0.1.0"
