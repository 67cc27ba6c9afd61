"""Whether a node still computes what it should: products of matrices against stored references."""
