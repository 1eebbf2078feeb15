"""Checks of what users pass, and of what files hold."""
