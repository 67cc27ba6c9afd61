"""What all compiled code stands on: compilation, the table of pointers, heaps and random numbers."""
