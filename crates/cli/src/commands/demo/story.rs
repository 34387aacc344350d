//! How the demo goes: orders are submitted and paid while the worker is killed, until every order has ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abide_kernel::{RunId, Status, Timestamp};
use abide_runtime::Snapshot;
use abide_store::sqlite::open_read_only;

use super::kills::{Chance, Point};
use super::protocol::{Ask, Told};
use super::stage::{Heard, Worker};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::screen::{Screen, Tone};

const ORDERS_MIN: usize = 6;
/// Between two orders.
const ORDER_EVERY: Duration = Duration::from_millis(150);
/// Between two looks at the store, beside the worker.
const LOOK_EVERY: Duration = Duration::from_millis(60);
/// A moment that does not come is not waited for longer than this.
const MOMENT_AWAITED: Duration = Duration::from_millis(1_500);
/// The demo does not last longer, whatever happens.
const LIMIT: Duration = Duration::from_secs(28);

/// An order, and what of it was acknowledged.
pub(super) struct OrderTold {
    pub(super) name: String,
    pub(super) run: Option<RunId>,
    pub(super) paid: bool,
    asked_start: Option<u64>,
    asked_pay: Option<u64>,
    /// It was asked for payment in some life: if nobody acknowledged it, it is asked again, whatever it came to.
    ever_asked_pay: bool,
}

/// A worker's violent end.
pub(super) struct Kill {
    pub(super) at: Timestamp,
    pub(super) point: Point,
}

/// What happened, as the one who watched remembers it.
pub(super) struct Story {
    pub(super) orders: Vec<OrderTold>,
    pub(super) kills: Vec<Kill>,
    pub(super) took: Duration,
}

impl Story {
    pub(super) fn kills_by_point(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for kill in &self.kills {
            *counts.entry(kill.point.name()).or_default() += 1;
        }
        counts
    }
}

pub(super) fn play(screen: &Screen, dir: &Path, kills: usize, shards: u16) -> Result<Story, Failure> {
    let mut play = Play {
        screen,
        dir,
        shards,
        wanted: kills,
        began: Instant::now(),
        interrupt: Interrupt::listen()?,
        chance: Chance::new(),
        asked: 0,
        story: Story {
            orders: (1..=ORDERS_MIN.max(kills))
                .map(|number| OrderTold {
                    name: format!("order-{number}"),
                    run: None,
                    paid: false,
                    asked_start: None,
                    asked_pay: None,
                    ever_asked_pay: false,
                })
                .collect(),
            kills: Vec::new(),
            took: Duration::ZERO,
        },
    };
    play.say(Tone::Faint, &format!("store {}", dir.join(super::STORE).display()))?;
    while play.one_life()? == Life::Killed {}
    play.story.took = play.began.elapsed();
    Ok(play.story)
}

#[derive(PartialEq, Eq)]
enum Life {
    Killed,
    Finished,
}

struct Play<'a> {
    screen: &'a Screen,
    dir: &'a Path,
    shards: u16,
    wanted: usize,
    began: Instant,
    interrupt: Interrupt,
    chance: Chance,
    asked: u64,
    story: Story,
}

impl Play<'_> {
    fn say(&self, tone: Tone, text: &str) -> Result<(), Failure> {
        if !self.screen.is_text() {
            return Ok(());
        }
        let clock = self.screen.paint(Tone::Faint, &format!("{:6.2}s", self.began.elapsed().as_secs_f64()));
        let text = crate::text::clean(text);
        self.screen.line(&format!("{clock}  {}", self.screen.paint(tone, &text)))
    }

    /// The next moment to strike at, while there are kills left.
    fn point(&self) -> Option<Point> {
        let done = self.story.kills.len();
        (done < self.wanted).then(|| Point::ALL[done % Point::ALL.len()])
    }

    /// One worker, from its start to its end.
    fn one_life(&mut self) -> Result<Life, Failure> {
        let mut worker = Worker::start(self.dir, self.shards)?;
        for order in &mut self.story.orders {
            // What was asked of the one before and not acknowledged is asked again.
            (order.asked_start, order.asked_pay) = (None, None);
        }
        if self.point() == Some(Point::WhileOpening) {
            std::thread::sleep(Duration::from_millis(self.chance.between(2, 15)));
            return self.kill(&mut worker, Point::WhileOpening);
        }
        let lived = Instant::now();
        let random = Duration::from_millis(self.chance.between(80, 500));
        let (mut next_order, mut next_look) = (Instant::now(), Instant::now());
        let mut ready = false;
        loop {
            let heard = worker.listen(Duration::from_millis(5));
            if let Heard::Told(told) = &heard {
                ready |= matches!(told, Told::Ready);
                if matches!(told, Told::Ready) {
                    self.say(Tone::Good, &format!("worker {} has the store, and its runs go on", worker.id()))?;
                }
                let is_moment = self.point().is_some_and(|point| point.is_told(told, |number| self.is_start(number)));
                self.note(told)?;
                if let (true, Some(point)) = (is_moment, self.point()) {
                    return self.kill(&mut worker, point);
                }
            }
            self.check_time()?;
            if matches!(heard, Heard::Gone) {
                return Err(Failure::new(Exit::Failure, "demo", "the worker ended by itself"));
            }
            if !ready {
                continue;
            }
            if let Some(point) = self.point().filter(|_| lived.elapsed() >= MOMENT_AWAITED) {
                let point = if point == Point::WhileOpening { point } else { Point::AtRandom };
                return self.kill(&mut worker, point);
            }
            if self.point() == Some(Point::AtRandom) && lived.elapsed() >= random {
                return self.kill(&mut worker, Point::AtRandom);
            }
            if next_order <= Instant::now() {
                next_order = Instant::now() + ORDER_EVERY;
                self.submit(&mut worker);
            }
            if next_look <= Instant::now() {
                next_look = Instant::now() + LOOK_EVERY;
                let statuses = self.look(&mut worker)?;
                if let Some(point) = self.point().filter(|point| point.is_seen(&statuses)) {
                    return self.kill(&mut worker, point);
                }
                if self.point().is_none() && self.is_over(&statuses) {
                    self.say(Tone::Good, "every order has ended; the worker stops")?;
                    worker.stop()?;
                    return Ok(Life::Finished);
                }
            }
        }
    }

    fn check_time(&self) -> Result<(), Failure> {
        self.interrupt.check()?;
        if self.began.elapsed() < LIMIT {
            return Ok(());
        }
        let what = format!("the orders have not ended within {} s", LIMIT.as_secs());
        Err(Failure::new(Exit::Unknown, "timeout", what).hint("is the machine very busy? try --kills 5"))
    }

    fn is_start(&self, number: u64) -> bool {
        self.story.orders.iter().any(|order| order.asked_start == Some(number))
    }

    fn kill(&mut self, worker: &mut Worker, point: Point) -> Result<Life, Failure> {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (killed, last_words) = worker.kill()?;
        for told in &last_words {
            self.note(told)?;
        }
        if !killed {
            return Err(Failure::new(Exit::Failure, "demo", "the worker ended before it could be killed"));
        }
        self.story.kills.push(Kill { at: Timestamp(wall.as_millis() as i64), point });
        let text =
            format!("✂ kill {} of {}: SIGKILL {} {}", self.story.kills.len(), self.wanted, worker.id(), point.words());
        self.say(Tone::Bad, &text)?;
        Ok(Life::Killed)
    }

    /// Remembers an acknowledgement: from now on it must not be lost.
    fn note(&mut self, told: &Told) -> Result<(), Failure> {
        match told {
            Told::Acknowledged { number, run } => {
                let mut news = None;
                for order in &mut self.story.orders {
                    if order.asked_start == Some(*number) && order.run.replace(*run).is_none() {
                        news = Some(format!("{} is acknowledged", order.name));
                    }
                    if order.asked_pay == Some(*number) && !order.paid {
                        order.paid = true;
                        news = Some(format!("payment of {} is acknowledged", order.name));
                    }
                }
                news.map_or(Ok(()), |news| self.say(Tone::Plain, &news))
            }
            Told::Refused { why, .. } => Err(Failure::new(Exit::Failure, "demo", format!("the worker refused: {why}"))),
            Told::Ready | Told::Began { .. } => Ok(()),
        }
    }

    /// Asks for the next order that nobody has acknowledged.
    fn submit(&mut self, worker: &mut Worker) {
        self.asked += 1;
        let number = self.asked;
        let next = self.story.orders.iter_mut().find(|order| order.run.is_none() && order.asked_start.is_none());
        if let Some(order) = next {
            order.asked_start = Some(number);
            let order = order.name.clone();
            worker.ask(&Ask::Start { number, order });
        }
    }

    /// Looks at the store beside the worker, and pays orders that wait for it. The last payment is held back until
    /// all kills are done, so that they strike while there is work.
    fn look(&mut self, worker: &mut Worker) -> Result<Vec<Status>, Failure> {
        let mut snapshot = Snapshot::read(Box::new(open_read_only(&self.dir.join(super::STORE))?))?;
        let mut statuses = Vec::new();
        let held_back = self.point().map(|_| self.story.orders.len() - 1);
        for (index, order) in self.story.orders.iter_mut().enumerate() {
            let Some(run) = order.run else { continue };
            let Some(stored) = snapshot.show(run)? else {
                continue;
            };
            let status = stored.run.status();
            statuses.push(status);
            let unpaid = !order.paid && order.asked_pay.is_none();
            let wanted = status == Status::AwaitingSignal || order.ever_asked_pay;
            if wanted && unpaid && held_back != Some(index) {
                order.ever_asked_pay = true;
                self.asked += 1;
                order.asked_pay = Some(self.asked);
                worker.ask(&Ask::Pay { number: self.asked, order: order.name.clone(), run });
            }
        }
        Ok(statuses)
    }

    fn is_over(&self, statuses: &[Status]) -> bool {
        let orders = &self.story.orders;
        orders.iter().all(|order| order.paid)
            && statuses.len() == orders.len()
            && statuses.iter().all(|status| status.is_terminal())
    }
}
