"""What convgen knows of a convolution as a page with pictures: `convgen explain --html`."""
