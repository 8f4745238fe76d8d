//! Strongly connected components of part of the explored graph (Tarjan's algorithm, without recursion).

use super::explore::Graph;

/// The parts of a graph.
pub(super) struct Components {
    /// The part of each state; `None` for states left out.
    pub(super) of: Vec<Option<u32>>,
    /// Number of parts.
    pub(super) count: usize,
}

const UNSEEN: u32 = u32::MAX;

/// Components among the states and edges (by number) that pass the filters.
pub(super) fn components(
    graph: &Graph,
    states: &impl Fn(usize) -> bool,
    edges: impl Fn(usize) -> bool,
) -> Components {
    let total = graph.first_edge.len() - 1;
    let mut order = vec![UNSEEN; total];
    let mut low = vec![0u32; total];
    let mut of: Vec<Option<u32>> = vec![None; total];
    let mut open: Vec<u32> = Vec::new();
    let mut path: Vec<(u32, u32)> = Vec::new();
    let (mut next_order, mut count) = (0u32, 0u32);
    for root in 0..total {
        if order[root] != UNSEEN || !states(root) {
            continue;
        }
        path.push((root as u32, graph.first_edge[root]));
        order[root] = next_order;
        low[root] = next_order;
        next_order += 1;
        open.push(root as u32);
        while let Some(&mut (state, ref mut edge)) = path.last_mut() {
            let here = state as usize;
            if *edge < graph.first_edge[here + 1] {
                let number = *edge as usize;
                *edge += 1;
                let target = graph.targets[number] as usize;
                if !edges(number) || !states(target) {
                    continue;
                }
                if order[target] == UNSEEN {
                    order[target] = next_order;
                    low[target] = next_order;
                    next_order += 1;
                    open.push(target as u32);
                    path.push((target as u32, graph.first_edge[target]));
                } else if of[target].is_none() {
                    low[here] = low[here].min(order[target]);
                }
                continue;
            }
            path.pop();
            if let Some(&(parent, _)) = path.last() {
                low[parent as usize] = low[parent as usize].min(low[here]);
            }
            if low[here] == order[here] {
                while let Some(member) = open.pop() {
                    of[member as usize] = Some(count);
                    if member as usize == here {
                        break;
                    }
                }
                count += 1;
            }
        }
    }
    Components { of, count: count as usize }
}
