"""Whole networks: from a model to a graph in which convolutions are convgen's, with what follows them fused in."""
