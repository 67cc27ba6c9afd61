"""The real cluster as the arrays that policies see."""
