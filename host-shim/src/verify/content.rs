//! Seeded bytes: different for every tensor and every execution, the same for every run of one seed.

/// Most bytes of a tensor that are filled. The rest of a larger one keeps what it held, so that binding gigabytes costs
/// no memory.
pub const MAX_FILLED_BYTES: u64 = 16 << 20;

/// Makes the bytes of tensors.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    seed: u64,
}

impl Content {
    /// Contents that follow from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Fills `bytes`, the first bytes of tensor number `tensor`, for execution number `execution`.
    pub fn fill(&self, tensor: usize, execution: u64, bytes: &mut [u8]) {
        // Three rounds of mixing keep neighbouring tensors and executions unlike one another.
        let mut state = mix(mix(self.seed ^ mix(tensor as u64)) ^ execution);
        for chunk in bytes.chunks_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            chunk.copy_from_slice(&mix(state).to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The finishing step of SplitMix64.
const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(seed: u64, tensor: usize, execution: u64, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        Content::new(seed).fill(tensor, execution, &mut into);
        into
    }

    #[test]
    fn contents_follow_from_seed_tensor_and_execution_alone() {
        let base = filled(1, 2, 3, 4096);
        assert_eq!(filled(1, 2, 3, 4096), base);
        assert_eq!(filled(1, 2, 3, 13), base[..13]);
        for other in [filled(0, 2, 3, 4096), filled(1, 0, 3, 4096), filled(1, 2, 4, 4096)] {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(same < 64, "{same} of 4096 bytes are the same");
        }
    }
}
