"""The version, where pyproject.toml can read it without importing the package."""

__version__ = "0.2.0.dev0"
