"""What is known of nodes and jobs beyond single reports: iteration times, states with evidence, faults, leases."""
