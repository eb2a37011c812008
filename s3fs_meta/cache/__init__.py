"""Local copies of blocks, from dirty to evicted."""
