"""Programs and libraries with text of a given size, built when a case wants them."""
