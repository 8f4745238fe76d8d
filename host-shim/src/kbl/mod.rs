//! The compute-resource build: from a loaded model and two sets of tensors to executions on a device.

mod lru;
mod registry;
mod set;
mod tensor;

pub use registry::{Held, Holder, Holders, ModelHandle, RegistryError};
pub use set::{SetError, TensorSet};
pub use tensor::{Tensor, TensorError};
