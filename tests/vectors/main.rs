//! Test vectors that are kept in files, run through the product.

#[cfg(test)]
mod keys;
