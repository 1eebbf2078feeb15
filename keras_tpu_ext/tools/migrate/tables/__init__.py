"""What old names mean today: plain data, which docs/dropin.md prints and the drop-in is held against."""
