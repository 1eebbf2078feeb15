"""How `check_parity` works inside: two fresh processes that act out the same scenes, and the comparison of them."""
