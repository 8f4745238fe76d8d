//! Any order of appends, looks, drains, refills, freezes, clears, crashes and returns of the host: no record is lost
//! without being counted, none arrives twice, none out of order.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;

#[derive(Clone, Copy, Debug)]
enum Event {
    Append,
    Look,
    Drain,
    Refill,
    Shut(Gate),
    Open(Gate),
    Clear(Gate),
    Epoch,
    Beat,
    Time,
}

fn event() -> impl Strategy<Value = Event> {
    let gate = prop_oneof![Just(Gate::Ready), Just(Gate::Free)];
    prop_oneof![
        12 => Just(Event::Append),
        6 => Just(Event::Look),
        4 => Just(Event::Drain),
        4 => Just(Event::Refill),
        1 => gate.clone().prop_map(Event::Shut),
        1 => gate.clone().prop_map(Event::Open),
        1 => gate.prop_map(Event::Clear),
        1 => Just(Event::Epoch),
        1 => Just(Event::Beat),
        1 => Just(Event::Time),
    ]
}

/// A bench, what its host holds, and what it has collected.
struct Run {
    bench: MappedBench,
    switch: Option<Switch>,
    held: VecDeque<DevAddr>,
    collected: Vec<[u32; 4]>,
    sequence: u32,
    next: u32,
    buffers: u32,
}

impl Run {
    fn new(buffers: u32) -> Self {
        Self {
            bench: Bench::sized(mapped(), 3, 2),
            switch: None,
            held: (0..buffers).map(tiny::buffer).collect(),
            collected: Vec::new(),
            sequence: 0,
            next: 0,
            buffers,
        }
    }

    fn look(&mut self) {
        let Some(mut switch) = self.switch.take() else { return };
        match self.bench.poll(&mut switch) {
            Progress::Done(_) => {}
            Progress::Moved | Progress::Waiting(_) => self.switch = Some(switch),
        }
    }

    /// Appends as a lane does that polls its switches: a record that finds no buffer is lost only if a claim failed.
    fn append(&mut self) {
        if self.switch.is_some() {
            return self.look();
        }
        let pool = &mut self.bench.pool;
        let record = [self.next, !self.next, 7, self.next];
        match pool.try_append(&record) {
            Append::NoBuffer => self.switch = Some(self.bench.lane.begin_claim()),
            stored => {
                pool.count_attempt();
                self.next += 1;
                if stored == Append::Full {
                    self.switch = Some(self.bench.lane.begin_switch());
                }
            }
        }
    }

    fn drain(&mut self) {
        let Some(entry) = self.bench.host.drain(0) else { return };
        assert_eq!(entry.sequence, self.sequence, "buffers arrive in the order of their sequence");
        self.sequence += 1;
        self.collected.extend(self.bench.host.records(entry.buffer));
        self.held.push_back(entry.buffer);
    }

    fn refill(&mut self) {
        if self.bench.host.waiting(0) < self.bench.host.free_slots
            && let Some(buffer) = self.held.pop_front()
        {
            self.bench.host.push(0, buffer);
        }
    }

    fn happen(&mut self, event: Event) {
        let host = &self.bench.host;
        match event {
            Event::Append => self.append(),
            Event::Look => self.look(),
            Event::Drain => self.drain(),
            Event::Refill => self.refill(),
            Event::Shut(gate) => host.set_shut(gate, true),
            Event::Open(gate) => host.set_shut(gate, false),
            Event::Clear(gate) => host.clear(gate),
            Event::Epoch => host.bump_epoch(),
            Event::Beat => host.bump(tiny::EXTENSION_GATES.host_heartbeat),
            Event::Time => {
                let now = &self.bench.env.now_cycles;
                now.set(now.get() + LIMIT_CYCLES / 2);
            }
        }
    }

    /// Every buffer is in one place, and every attempt in one account.
    fn check(&self) {
        let host = &self.bench.host;
        let places = self.held.len() as u32
            + host.waiting(0)
            + host.published(0)
            + u32::from(self.bench.pool.has_buffer());
        assert_eq!(places, self.buffers);
        assert_eq!(self.bench.pool.has_buffer(), !host.current(0).is_null());
        let in_ring = self.bench.pool.state().published - u64::from(self.sequence);
        assert_eq!(u64::from(host.published(0)), in_ring);
    }

    /// The host serves on until the lane has flushed.
    fn finish(mut self) {
        GATES.iter().for_each(|&gate| self.bench.host.set_shut(gate, false));
        while self.switch.is_some() {
            self.drain();
            self.refill();
            self.look();
        }
        while self.bench.pool.state().count > 0 {
            self.drain();
            let _ = self.bench.lane.flush(&mut self.bench.pool, &mut self.bench.env);
        }
        while self.bench.host.published(0) > 0 {
            self.drain();
        }
        self.check();
        self.bench.assert_conserved(self.collected.len() as u64);
        assert!(self.collected.windows(2).all(|pair| pair[0][0] < pair[1][0]));
        assert!(self.collected.iter().all(|&[a, b, c, d]| b == !a && c == 7 && d == a));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_attempt_is_collected_or_counted(
        buffers in 1..=5_u32,
        events in prop::collection::vec(event(), 0..if cfg!(miri) { 60 } else { 400 }),
    ) {
        let mut run = Run::new(buffers);
        for event in events {
            run.happen(event);
            run.check();
        }
        run.finish();
    }
}

#[test]
fn the_schedules_reach_every_outcome() {
    // A fixed course through expiry, latch and return, so that the property above is known to speak of them.
    let mut run = Run::new(1);
    for event in
        [vec![Event::Refill], vec![Event::Append; 5], vec![Event::Look; 2], vec![Event::Time; 2]].concat()
    {
        run.happen(event);
    }
    run.look();
    run.look();
    assert!(run.bench.lane.state().latch.is_set());
    run.happen(Event::Beat);
    run.happen(Event::Append);
    run.happen(Event::Look);
    assert!(!run.bench.lane.state().latch.is_set());
    run.finish();
}
