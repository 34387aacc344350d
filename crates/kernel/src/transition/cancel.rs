//! Cancel: a run ends from outside. The terminal fact fences everything; workers learn of it cooperatively.

use alloc::sync::Arc;

use super::Transition;
use crate::envelope::Message;
use crate::{Ended, ErrorInfo, Refusal, RequestId, Run, Status};

/// Ends the run, and its open children if `cascade` says so. An empty transition means: this request had
/// cancelled it before.
///
/// # Errors
/// When the run has ended otherwise.
pub fn decide(run: &Run, request: RequestId, cascade: bool, reason: &Arc<ErrorInfo>) -> Result<Transition, Refusal> {
    if let Some(end) = &run.end {
        return if end.request == Some(request) {
            Ok(Transition::default())
        } else {
            Err(Refusal::RunOver { run: run.id, status: end.status })
        };
    }
    reason.validate()?;
    let mut transition = Transition::default();
    let ended = Ended { status: Status::Cancelled, result: None, error: Some(reason.clone()), request: Some(request) };
    super::end(run, ended, &mut transition);
    if cascade {
        for child in run.children.iter().filter(|child| child.end.is_none()) {
            let (run, reason) = (child.id, reason.clone());
            let cancel = Message::Cancel { run, request, cascade, reason };
            transition.messages.push(cancel.along(child.admission));
        }
    }
    Ok(transition)
}
