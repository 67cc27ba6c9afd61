"""Constants fitted to measured runs, and how sure they are."""
