//! Records as rows: sealed and opened, written and read.

use bytes::Bytes;

use super::database::Kept;
use crate::{
    core::record::{
        ClaimToken, Record, RecordId, State, StoredAnswer,
        encoding::{self, Damage, Part},
    },
    store::seal::{Place, Seal, SealError},
};

/// Why a row is not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Damage(#[from] Damage),
    #[error("its row and its record say different things")]
    Row,
    #[error("its row is damaged")]
    Damaged,
}

/// A record's head as it is kept.
pub(super) fn write_head(
    seal: &Seal,
    id: &RecordId,
    token: ClaimToken,
    record: &Record,
) -> Result<Vec<u8>, SealError> {
    let state = record.state.number();
    seal.seal(place(id, Part::Head, state, token), encoding::head(record))
}

/// An answer as it is kept.
pub(super) fn write_answer(
    seal: &Seal,
    id: &RecordId,
    token: ClaimToken,
    answer: &StoredAnswer,
) -> Result<Vec<u8>, SealError> {
    let frame = encoding::answer(answer);
    seal.seal(place(id, Part::Answer, COMPLETE, token), frame)
}

/// The record without its answer: enough to decide by.
pub(super) fn read_head(seal: &Seal, id: &RecordId, kept: &Kept) -> Result<Record, Unreadable> {
    let place = place(id, Part::Head, kept.state, kept.token);
    let record = encoding::read_head(&seal.open(place, kept.head.clone())?)?;
    let same_token = match &record.state {
        State::InFlight { token, .. } => *token == kept.token,
        _ => true,
    };
    if record.state.number() != kept.state || !same_token {
        return Err(Unreadable::Row);
    }
    Ok(record)
}

/// The whole record.
pub(super) fn read_whole(
    seal: &Seal,
    id: &RecordId,
    kept: &Kept,
    answer: Option<Vec<u8>>,
) -> Result<Record, Unreadable> {
    let record = read_head(seal, id, kept)?;
    let place = place(id, Part::Answer, kept.state, kept.token);
    let answer = answer
        .map(|answer| {
            let frame = Bytes::from(seal.open(place, answer)?);
            Ok::<_, Unreadable>(encoding::read_answer(&frame)?)
        })
        .transpose()?;
    Ok(encoding::whole(record, answer)?)
}

fn place(id: &RecordId, part: Part, state: u8, token: ClaimToken) -> Place<'_> {
    Place::Record {
        id,
        part,
        state,
        token,
    }
}

/// The state of a record that has an answer.
const COMPLETE: u8 = 2;
