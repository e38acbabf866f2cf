"""The lines of scripts/verify, a module per issue: LINES and presets()."""
