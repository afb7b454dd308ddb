"""Scaffold."""
