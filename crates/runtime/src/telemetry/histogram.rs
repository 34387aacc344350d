//! Histograms with fixed bounds.

/// How often values fell below each of its bounds.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than there are bounds: the last is for what lies above them all.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(super) fn add(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// The upper bounds, and how many values fell between each and the one before; the last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bounds.iter().copied().chain([f64::INFINITY]).zip(self.counts.iter().copied())
    }

    /// How many values there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-20: a value on a bound is below it, one above all is counted too.
    #[test]
    fn values_fall_where_they_belong() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 9.0].into_iter().for_each(|value| histogram.add(value));
        let counts: Vec<u64> = histogram.buckets().map(|(_, count)| count).collect();
        assert_eq!((counts, histogram.count(), histogram.sum()), (vec![2, 1, 1], 4, 12.0));
    }
}
