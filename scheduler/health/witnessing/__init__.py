"""Who looks at a node that has gone silent, and what they see."""
