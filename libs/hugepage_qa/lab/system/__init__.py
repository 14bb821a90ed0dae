"""System machines: whole distributions under test, with a real boot loader."""
