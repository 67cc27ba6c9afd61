"""The state of simulations as arrays, and the checked border that all input of kernels passes."""
