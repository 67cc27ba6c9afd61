"""Commands for who runs a scheduler."""
