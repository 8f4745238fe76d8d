//! Placeholder for `gate`.
