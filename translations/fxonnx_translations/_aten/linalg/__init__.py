"""Linear algebra: matrix products, factorizations, eigenvalues and linear systems."""
