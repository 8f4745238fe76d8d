//! Device firmware as a library, generic over one `Platform`.
#![no_std]
