"""What ranks of this machine do in a second, measured: for plans of machines without GPUs."""
