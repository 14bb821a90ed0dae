"""Results of other tools as samples: one file per format, and the table of them in ``formats``."""
