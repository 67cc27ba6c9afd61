"""Rights: tokens, hosts and browsers."""
