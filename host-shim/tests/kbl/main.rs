//! Models on the simulated device, from load to removal: what they write is compared byte for byte with what the host
//! computes on its own.

mod bench;
#[path = "../common/expected.rs"]
mod expected;
mod flow;
mod opaque;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/real_model.rs"]
mod real_model;
mod rebind;
