//! The models that come with Sluice, as text; [`pack`](super::pack) makes containers of them.

/// Names of the built-in models.
pub const NAMES: [&str; 2] = ["gather", "pointers"];

/// The text of the built-in model of that name.
pub fn builtin(name: &str) -> Option<&'static str> {
    match name {
        "gather" => Some(include_str!("../../models/gather.toml")),
        "pointers" => Some(include_str!("../../models/pointers.toml")),
        _ => None,
    }
}
