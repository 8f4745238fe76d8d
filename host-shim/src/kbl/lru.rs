//! A small cache that forgets what was used least recently.
//!
//! Capacities are a handful, so the entries lie in one vector, most recent first, and a probe compares keys one by one.
//! Values are shared pointers: an entry that is evicted while someone uses it lives on with its user. What nobody uses is
//! handed out to be dropped, because whoever has the cache has a lock.

use std::sync::Arc;

/// At most `capacity` values by key.
#[derive(Debug)]
pub(super) struct Lru<K, V> {
    capacity: usize,
    entries: Vec<(K, Arc<V>)>,
}

impl<K: PartialEq, V> Lru<K, V> {
    /// An empty cache; one of capacity 0 keeps nothing. It takes memory as it fills.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, entries: Vec::new() }
    }

    /// The value of `key`, which becomes no more recent by that.
    pub(super) fn peek<Q: PartialEq + ?Sized>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.entries.iter().find(|(entry, _)| entry.borrow() == key).map(|(_, value)| Arc::clone(value))
    }

    /// The value of `key`, which becomes the most recent.
    pub(super) fn get<Q: PartialEq + ?Sized>(&mut self, key: &Q) -> Option<Arc<V>>
    where
        K: std::borrow::Borrow<Q>,
    {
        let place = self.entries.iter().position(|(entry, _)| entry.borrow() == key)?;
        self.entries[..=place].rotate_right(1);
        Some(Arc::clone(&self.entries[0].1))
    }

    /// Enters `value`, unless another thread has entered one under this key meanwhile; returns the one to use, and what is in
    /// the cache no more: the entry that had to go, or `value` itself.
    pub(super) fn insert(&mut self, key: K, value: Arc<V>) -> (Arc<V>, Option<(K, Arc<V>)>) {
        if let Some(earlier) = self.get(&key) {
            return (earlier, Some((key, value)));
        }
        if self.capacity == 0 {
            return (value, None);
        }
        let evicted = if self.entries.len() == self.capacity { self.entries.pop() } else { None };
        self.entries.insert(0, (key, Arc::clone(&value)));
        (value, evicted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_least_recently_used_goes_first_and_lives_on_with_its_user() {
        let mut cache = Lru::new(2);
        let (first, _) = cache.insert(1, Arc::new("a"));
        cache.insert(2, Arc::new("b"));
        assert!(cache.get(&1).is_some());
        let (_, evicted) = cache.insert(3, Arc::new("c"));
        assert_eq!(evicted, Some((2, Arc::new("b"))));
        assert!(cache.get(&2).is_none());
        let (_, evicted) = cache.insert(4, Arc::new("d"));
        assert!(cache.get(&1).is_none());
        drop(evicted);
        assert_eq!((*first, Arc::strong_count(&first)), ("a", 1));
    }

    #[test]
    fn a_peek_changes_nothing() {
        let mut cache = Lru::new(2);
        cache.insert(1, Arc::new("a"));
        cache.insert(2, Arc::new("b"));
        assert_eq!((cache.peek(&1), cache.peek(&3)), (Some(Arc::new("a")), None));
        let (_, evicted) = cache.insert(3, Arc::new("c"));
        assert_eq!(evicted, Some((1, Arc::new("a"))));
    }

    #[test]
    fn the_value_that_came_first_wins() {
        let mut cache = Lru::new(usize::MAX);
        cache.insert(1, Arc::new("first"));
        let late = cache.insert(1, Arc::new("second"));
        assert_eq!(late, (Arc::new("first"), Some((1, Arc::new("second")))));
        assert_eq!(cache.entries.len(), 1);
    }

    #[test]
    fn capacity_zero_keeps_nothing() {
        let mut cache = Lru::new(0);
        assert_eq!(cache.insert(1, Arc::new("a")), (Arc::new("a"), None));
        assert!(cache.get(&1).is_none());
    }

    proptest! {
        #[test]
        fn holds_exactly_the_most_recent_keys(
            capacity in 1usize..5,
            uses in prop::collection::vec(0u32..8, 0..60),
        ) {
            let mut cache = Lru::new(capacity);
            let mut recent: Vec<u32> = Vec::new();
            for key in uses {
                let hit = cache.get(&key).is_some();
                prop_assert_eq!(hit, recent.iter().take(capacity).any(|&seen| seen == key));
                cache.insert(key, Arc::new(key));
                recent.retain(|&seen| seen != key);
                recent.insert(0, key);
                prop_assert_eq!(cache.entries.len(), recent.len().min(capacity));
            }
        }
    }
}
