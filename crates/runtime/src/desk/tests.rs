//! What the desk promises by itself.

use abide_kernel::Fingerprint;

use super::*;

fn offer(workflow: &str) -> Offer {
    Offer {
        namespace: Some("shop".into()),
        queues: vec!["default".into()],
        definitions: vec![Definition {
            workflow: workflow.into(),
            version: 1,
            fingerprint: Fingerprint(1),
            first_step: "first".into(),
        }],
        by: Claimant::new("hand".into(), TokenHash(7), 30_000, None),
        most: 1,
        waits: true,
    }
}

fn sit(desk: &mut Desk, now: u64, workflow: &str) -> Result<u64, Refusal> {
    let (reply, receiver) = oneshot::channel();
    // One who waits holds the other end.
    std::mem::forget(receiver);
    desk.sit(Timestamp(now as i64), &offer(workflow), reply).map(|(seat, _)| seat)
}

/// AB-16: what anybody may make known is bounded, and those who are known still find a seat, as do those of other
/// namespaces.
#[test]
fn there_is_room_for_so_many_kinds() {
    let mut desk = Desk::new(2);
    let other = |desk: &mut Desk, workflow: &str| {
        let (reply, _) = oneshot::channel();
        desk.sit(Timestamp(0), &Offer { namespace: Some("bank".into()), ..offer(workflow) }, reply).map(drop)
    };
    for number in 0..KINDS_MAX {
        assert!(sit(&mut desk, 0, &format!("workflow {number}")).is_ok());
    }
    assert!(matches!(sit(&mut desk, 0, "one more"), Err(Refusal::Busy { .. })));
    assert!(sit(&mut desk, 0, "workflow 0").is_ok());
    assert!(other(&mut desk, "one more").is_ok(), "a flood in one namespace is not held against another");
}

/// AB-16: those of one namespace who wait leave room for those of another.
#[test]
fn there_is_room_for_so_many_who_wait() {
    let mut desk = Desk::new(0);
    for _ in 0..SEATS_MAX {
        assert!(sit(&mut desk, 0, "mail").is_ok());
    }
    assert!(matches!(sit(&mut desk, 0, "mail"), Err(Refusal::Busy { .. })));
    let (reply, _) = oneshot::channel();
    let other = Offer { namespace: Some("bank".into()), ..offer("mail") };
    assert!(desk.sit(Timestamp(0), &other, reply).is_ok());
}

/// D25: a worker that says something is here, also while it asks for nothing; one that does not is forgotten.
#[test]
fn whoever_reports_is_not_forgotten() {
    let mut desk = Desk::new(0);
    let seat = sit(&mut desk, 0, "mail").expect("a seat");
    desk.stand_up(Timestamp(0), seat);
    let later = |ms: u64| Timestamp(0).after(ms);
    desk.heard(later(LINGER_MS - 1), TokenHash(7));
    assert!(desk.forget_idle(later(LINGER_MS)).is_empty());
    assert_eq!(desk.lately(later(LINGER_MS)).len(), 1);
    assert_eq!(desk.next_idle(), Some(later(2 * LINGER_MS - 1)));
    assert_eq!(desk.forget_idle(later(2 * LINGER_MS)), [WorkerId(0)]);
    assert!(desk.lately(later(2 * LINGER_MS)).is_empty() && desk.next_idle().is_none());
}

/// Where there is room for one at a time, it is not always the same kind's.
#[test]
fn kinds_take_turns() {
    let mut desk = Desk::new(0);
    for workflow in ["mail", "post", "mail", "post"] {
        sit(&mut desk, 0, workflow).expect("a seat");
    }
    let mut firsts = Vec::new();
    for _ in 0..2 {
        let mut room = 1;
        desk.fill(Timestamp(0), |worker, _, _| {
            firsts.extend((room > 0).then_some(worker));
            std::mem::take(&mut room)
        });
    }
    assert_eq!(firsts, [WorkerId(0), WorkerId(1)]);
}
