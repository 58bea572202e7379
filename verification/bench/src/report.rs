//! A run as tables for a terminal, as a page, and as figures for a program: each made from the
//! saved form alone, so that it can be made again at any time.

mod page;
mod terminal;
mod notes;
mod tables;

pub use page::page;
pub use terminal::{classes, text};
