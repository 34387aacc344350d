//! Dice: every draw of a world follows from its seed.

/// A stream of numbers that look random.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The dice of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(abide_kernel::mix(seed ^ 0x6162_6964_6521))
    }

    /// A number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        abide_kernel::mix(self.0)
    }

    /// A number below `end`, which is above zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// Whether something happens that happens so many times in a thousand.
    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        self.below(1_000) < permille
    }

    /// One of several.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let index = self.below(of.len() as u64) as usize;
        of.get(index)
    }

    /// The place in `weights` that was drawn: the heavier, the oftener.
    pub(crate) fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut drawn = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if drawn < *weight {
                return index;
            }
            drawn -= weight;
        }
        0
    }
}
