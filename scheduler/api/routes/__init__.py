"""The endpoints, one module for each kind of resource."""
