"""A page with pictures about a convolution: `convgen explain --html`."""
