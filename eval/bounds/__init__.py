"""Lower bounds: what no scheduler can be below."""
