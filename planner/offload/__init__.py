"""State of a training that leaves memory while nothing needs it, and is back before it is used."""
