//! The documents say what is so: names, numbers, examples and manifests are compared with the code.

#[cfg(test)]
mod configuration;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod image;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod markdown;
#[cfg(test)]
mod monitoring;
#[cfg(test)]
mod operations;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod service;
#[cfg(test)]
mod tools;
#[cfg(test)]
mod tour;
