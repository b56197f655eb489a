"""One TMA im2col load, pixel by pixel: `convgen explain --load`."""
