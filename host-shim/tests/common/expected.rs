//! What the built-in models write, computed from their descriptions alone.

/// Outputs of `gather`: `own0`, `own1`, `mix`.
pub(crate) fn gather(a: &[u8], b: &[u8]) -> [Vec<u8>; 3] {
    let rows = |matrix: &[u8]| matrix.chunks(512).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (a_rows, b_rows) = (rows(a), rows(b));

    // Core 0: a column of a, every second row of b, a constant, and all of a.
    let left: Vec<u8> = a_rows.iter().flat_map(|row| row[128..256].to_vec()).collect();
    let right: Vec<u8> = b_rows.iter().step_by(2).flatten().copied().collect();
    let ones: Vec<u8> = (1..=11).cycle().take(512).collect();
    let own0 = [&left[..], &right, &ones.repeat(8), a].concat();

    // Core 1: the rows of b, those of the first half at even places, those of the second at odd ones.
    let keep: Vec<u8> = (0..256).flat_map(|place| b_rows[place / 2 + 128 * (place % 2)].clone()).collect();
    let words: Vec<u8> = a_rows.iter().flat_map(|row| row[508..].to_vec()).collect();
    let own1 = [&keep[3..65_540], &words, &a[4..15_364]].concat();

    // Both: even rows by core 0, odd rows by core 1.
    let even = left.chunks(512).map(|row| &row[..256]);
    let odd = keep[65_536..].chunks(1024).map(|row| &row[..256]);
    let mix = even.zip(odd).flat_map(|(even, odd)| [even, odd].concat()).collect();
    [own0, own1, mix]
}

/// Output of `pointers`: the halves of `x` swapped, with `y` in between.
pub(crate) fn pointers(x: &[u8], y: &[u8]) -> Vec<u8> {
    let (first, second) = x.split_at(4096);
    [second, y, first].concat()
}
