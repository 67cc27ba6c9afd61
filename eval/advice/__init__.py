"""Which order regime and policy to run: all of them side by side, and the answer in words."""
