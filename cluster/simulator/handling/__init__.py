"""How jobs live on after a fault: detection, and switching of the GPUs that failed in a ring."""
