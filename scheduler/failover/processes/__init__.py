"""The processes of a ring beside its members: how they are started, and kept."""
