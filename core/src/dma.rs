//! Placeholder for `dma`.
