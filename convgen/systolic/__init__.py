"""A weight-stationary systolic array that convolves by channel-first implicit im2col: a model, not a code generator.

It follows Zhou et al., "Characterizing and Demystifying the Implicit Convolution Algorithm on Commercial
Matrix-Multiplication Accelerators" (IISWC 2021): a filter of R x S taps is R*S filters of one tap, whose products are
added; one *pass* keeps the weights of a tap (or of several, where channels are few) in the array and streams the pixels
that they multiply.  `schedule` lists the passes, `array` executes them cycle by cycle on data, `timing` counts the
cycles of whole layers.
"""
