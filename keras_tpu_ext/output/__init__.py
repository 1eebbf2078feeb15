"""How reports, figures and progress look."""
