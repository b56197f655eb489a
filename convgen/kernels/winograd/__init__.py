"""winograd: tiles and filters are transformed, multiplied point by point, and transformed back."""
