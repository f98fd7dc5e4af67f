"""The presets that come with the package, and their form in each framework."""
