//! The container reader on whole files: a real one, damaged ones, hostile ones, and the commands on top of it.

mod command;
mod damage;
mod hostile;
mod real;
#[path = "../common/real_model.rs"]
mod real_model;
