//! Bad input and hard times: whatever is wrong with a region's file or with the machine ends in an
//! error that says what to do, never in a crash, a hang or a lost record.

#[cfg(test)]
mod bad_files;
#[cfg(test)]
mod creation;
#[cfg(test)]
mod flips;
#[cfg(test)]
mod hard_times;
#[cfg(test)]
mod place;
#[cfg(test)]
mod truncated;
