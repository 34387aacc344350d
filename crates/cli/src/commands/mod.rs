//! The verbs, one file each, under their nouns.

pub(crate) mod approval;
pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod dead_letter;
pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod effect;
pub(crate) mod limit;
pub(crate) mod man;
pub(crate) mod node;
pub(crate) mod people;
pub(crate) mod queue;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod store;
pub(crate) mod task;
pub(crate) mod token;
pub(crate) mod user;
pub(crate) mod worker;
pub(crate) mod workflow;
