"""What this machine cannot measure."""


class Unavailable(Exception):
    """This machine cannot run a workload, or not on these pages; the text is the fact that proves it."""
