//! The configuration from outside: what a file and an environment give, and what is said about wrong ones.

#[cfg(test)]
mod any_input;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod common;
#[cfg(test)]
mod defaults;
#[cfg(test)]
mod environment;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod not_available;
#[cfg(test)]
mod policies;
#[cfg(test)]
mod routes;
mod stores;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod warnings;
#[cfg(test)]
mod wrong_values;
