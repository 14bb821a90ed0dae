"""What benchmark programs print, as samples."""
