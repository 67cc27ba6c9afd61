"""Who may do what: tokens, hosts and browsers."""
