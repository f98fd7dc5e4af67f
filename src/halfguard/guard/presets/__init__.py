"""The presets that come with the package, and how each framework writes them."""
