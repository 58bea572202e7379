//! The body of a request, in memory.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use h2::RecvStream;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::{HeaderMap, StatusCode};
use nearstate_node::ConnectionLimits;
use nearstate_node::executor::{Sleep, sleep};

use crate::limits::{BODY_BYTES_MAX, BODY_STEP_BYTES};
use crate::problem::Problem;
use crate::reply_body::RequestGuard;

/// A body that has not arrived yet.
#[derive(Debug)]
pub(crate) enum RequestBody {
    /// Of HTTP/1.1.
    One(Incoming),
    /// Of HTTP/2.
    Two(RecvStream),
}

impl RequestBody {
    /// The length that the client has announced, or 0. HTTP/2 has compared it with what arrives.
    fn announced(&self, headers: &HeaderMap) -> u64 {
        match self {
            Self::One(body) => body.size_hint().lower(),
            Self::Two(_) => {
                let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
                length.and_then(|length| length.parse().ok()).unwrap_or(0)
            }
        }
    }

    /// True if no further bytes arrive.
    fn is_over(&self) -> bool {
        match self {
            Self::One(body) => body.is_end_stream(),
            Self::Two(body) => body.is_end_stream(),
        }
    }

    /// The next bytes; `None` at the end.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Problem>>> {
        let failed = |error: &dyn std::fmt::Display| {
            Some(Err(Problem::message(format!("the body broke off: {error}"))))
        };
        match self {
            Self::One(body) => Pin::new(body).poll_frame(cx).map(|frame| match frame {
                None => None,
                Some(Ok(frame)) => Some(Ok(frame.into_data().unwrap_or_default())),
                Some(Err(error)) => failed(&error),
            }),
            Self::Two(body) => body.poll_data(cx).map(|bytes| match bytes {
                None => None,
                Some(Ok(bytes)) => {
                    // Bodies are bounded by what is in memory, not by the window of the stream.
                    match body.flow_control().release_capacity(bytes.len()) {
                        Ok(()) => Some(Ok(bytes)),
                        Err(error) => failed(&error),
                    }
                }
                Some(Err(error)) => failed(&error),
            }),
        }
    }
}

/// Reads a body into memory, within the limits of size and of time.
///
/// # Errors
/// 400, 408, 413, 503.
pub(crate) async fn collect(
    mut body: RequestBody,
    headers: &HeaderMap,
    guard: &mut RequestGuard,
    limits: &ConnectionLimits,
) -> Result<Bytes, Problem> {
    let mut whole: Vec<u8> = Vec::new();
    let mut first: Option<Bytes> = None;
    let mut progress = None;
    let mut announced = match &body {
        // Before HTTP/1.1 asks for the body (100).
        RequestBody::One(_) => Some(check_announced(&body, headers)?),
        // Most bodies of HTTP/2 have arrived with their head.
        RequestBody::Two(_) => None,
    };
    loop {
        let next = std::future::poll_fn(|cx| match body.poll_data(cx) {
            Poll::Ready(next) => Poll::Ready(Ok(next)),
            Poll::Pending => {
                if announced.is_none() {
                    match check_announced(&body, headers) {
                        Ok(bytes) => announced = Some(bytes),
                        Err(problem) => return Poll::Ready(Err(problem)),
                    }
                }
                progress.get_or_insert_with(|| BodyProgress::new(limits)).poll(cx).map(Err)
            }
        });
        let Some(bytes) = next.await? else { break };
        let bytes = bytes?;
        if guard.bytes + bytes.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        if !guard.add(bytes.len()) {
            let detail = "the connection has too many large requests in progress";
            return Err(Problem::busy(detail));
        }
        if let Some(progress) = &mut progress {
            progress.arrived += bytes.len();
        }
        // A body of one frame, which most are, is not copied.
        match (first.take(), whole.is_empty()) {
            (None, true) => {
                if body.is_over() {
                    return Ok(bytes);
                }
                first = Some(bytes);
            }
            (before, _) => {
                let announced = *announced.get_or_insert_with(|| body.announced(headers));
                for part in before.iter().chain([&bytes]) {
                    make_room(&mut whole, part.len(), announced);
                    whole.extend_from_slice(part);
                }
            }
        }
    }
    Ok(first.unwrap_or_else(|| Bytes::from(whole)))
}

/// The length that the client has announced, or 0.
fn check_announced(body: &RequestBody, headers: &HeaderMap) -> Result<u64, Problem> {
    let announced = body.announced(headers);
    if announced > BODY_BYTES_MAX as u64 { Err(too_large()) } else { Ok(announced) }
}

/// Room for the next bytes of a body: what was announced, but at most [`BODY_STEP_BYTES`], or as
/// much again as has arrived. A client cannot reserve memory by words alone, and a body of a
/// megabyte is not moved while it grows.
fn make_room(whole: &mut Vec<u8>, next: usize, announced: u64) {
    if whole.capacity() - whole.len() >= next {
        return;
    }
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    let left = announced.checked_sub(whole.len()).filter(|left| *left > 0);
    let step = whole.len().max(BODY_STEP_BYTES);
    whole.reserve_exact(left.map_or(step, |left| left.min(step)).max(next));
}

fn too_large() -> Problem {
    let detail = format!("the body exceeds {BODY_BYTES_MAX} bytes: write the record in parts");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", detail)
}

/// The time limit of a body: each period must bring some bytes.
struct BodyProgress {
    /// Begins when the body is waited for: most bodies arrive with their head.
    timer: Option<Sleep>,
    period: Duration,
    bytes_min: usize,
    arrived: usize,
    arrived_before: usize,
}

impl BodyProgress {
    fn new(limits: &ConnectionLimits) -> Self {
        let period = limits.request_timeout;
        let per_second = limits.request_bytes_per_second_min;
        let seconds = usize::try_from(period.as_secs()).unwrap_or(usize::MAX).max(1);
        let bytes_min = per_second.saturating_mul(seconds);
        Self { timer: None, period, bytes_min, arrived: 0, arrived_before: 0 }
    }

    /// `Ready`: too few bytes arrived in a period.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Problem> {
        while pin!(self.timer.get_or_insert_with(|| sleep(self.period))).poll(cx).is_ready() {
            if self.arrived - self.arrived_before < self.bytes_min {
                let detail = "the body did not arrive in time: send it faster, or raise \
                              limits.request_timeout";
                return Poll::Ready(Problem::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "REQUEST_TIMEOUT",
                    detail,
                ));
            }
            self.arrived_before = self.arrived;
            self.timer = None;
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_room_for_what_was_announced_but_not_for_words_alone() {
        const FRAME: usize = 16 << 10;
        let arrive = |frames: usize, announced: u64| {
            let (mut whole, mut moves) = (Vec::new(), 0);
            for _ in 0..frames {
                let before = whole.capacity();
                make_room(&mut whole, FRAME, announced);
                whole.resize(whole.len() + FRAME, 1);
                moves += usize::from(whole.capacity() != before);
            }
            (whole.capacity(), moves)
        };
        // A megabyte is placed once; what was announced is the end of a larger one.
        assert_eq!(arrive(64, 1 << 20), (1 << 20, 1));
        assert_eq!(arrive(640, 10 << 20), (10 << 20, 5));
        // Two frames of a large body, and of one of unknown length.
        for announced in [100 << 20, 0] {
            assert_eq!(arrive(2, announced), (BODY_STEP_BYTES, 1));
            let (capacity, moves) = arrive(640, announced);
            assert!(capacity <= 20 << 20 && moves <= 5, "{capacity} {moves}");
        }
        // More than was announced, which HTTP refuses before.
        assert!(arrive(640, 100).0 <= 20 << 20);
    }
}
