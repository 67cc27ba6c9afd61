"""How long an iteration takes on GPUs and how much memory it needs: formulas and their constants."""
